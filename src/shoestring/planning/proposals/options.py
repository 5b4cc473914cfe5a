"""Values of the recipe's options that make samples cheaper."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shoestring.base.errors import UsageError
from shoestring.base.settings import Settings
from shoestring.planning.candidates import Candidate, Candidates
from shoestring.planning.proposals.budget import Budget, evaluate
from shoestring.planning.proposals.proposal import Proposal, proposal_of
from shoestring.planning.search import TIE_RATIO
from shoestring.planning.shares import samples_per_shard
from shoestring.recipe.option_notes import Cheaper
from shoestring.recipe.options import LoadedRecipe, option_fields

_SMALLER_BATCH = Cheaper("a smaller effective batch, whose completions are generated all at once")
"""Of a recipe that generates samples: otherwise an effective batch is divided into microbatches."""


_REFINED_EVENTS = 100_000
"""Events of the longest trace, of some three seconds, for which a value larger than one that fits is tried."""


@dataclass(frozen=True, kw_only=True)
class _Option:
    """An option of the recipe, and its values that are cheaper than the present one and possible."""

    name: str
    cheaper: Cheaper
    values: Sequence[Any]
    """The cheapest first."""
    half: Any
    """The one of them that is nearest to half of the present value."""

    @property
    def first_index(self) -> int:
        """The index of the value to trace first: the cheapest if what is learned does not depend on it."""
        return (len(self.values) - 1) // 2 if self.cheaper.changes_learning else 0


def cheaper_options(loaded: LoadedRecipe) -> Iterator[_Option]:
    """Yield the recipe's options that have cheaper values, in the order in which they are proposed."""
    declared = [
        (name, note)
        for name, field in option_fields(loaded).items()
        for note in field.notes
        if isinstance(note, Cheaper)
    ]
    declared.sort(key=lambda option: (loaded.options[option[0]] is None, option[1].changes_learning, option[1].order))
    if loaded.parts.learning.rollout is not None:
        declared.append(("effective_batch", _SMALLER_BATCH))
    for name, cheaper in declared:
        present = loaded.options[name]
        if present is None:
            present = loaded.options.get(cheaper.unset)
        if values := [value for value in cheaper.than(present) if is_possible(loaded, {name: value})]:
            half = values[-1] if cheaper.values else min(values, key=lambda value: abs(value - present / 2))
            yield _Option(name=name, cheaper=cheaper, values=values, half=half)


def propose_options(candidates: Candidates, chosen: Candidate, budget: Budget, fits: bool) -> Iterator[Proposal]:
    """Propose the values of the recipe's options that make samples cheaper."""
    options = [*cheaper_options(candidates.loaded)]
    # Of a plan that fits one value of each option is traced; otherwise a search takes several traces.
    budgets = [budget] * len(options) if fits else budget.divide(len(options))
    for option, share in zip(options, budgets, strict=True):
        searched = replace(option, values=[option.half]) if fits else option
        if proposal := _propose_largest_that_fits(candidates, chosen, share, searched):
            yield proposal


def _propose_largest_that_fits(
    candidates: Candidates, chosen: Candidate, budget: Budget, option: _Option
) -> Proposal | None:
    """Return the proposal of the option's last value that fits, or of its first one, the cheapest, if none fits.

    It may be a cheaper one if traces are long, or if what is learned does not depend on it and another one would not be
    faster.
    """
    title, changes_learning, values = option.cheaper.change, option.cheaper.changes_learning, option.values
    best: Proposal | None = None
    low, high = -1, len(values)  # the largest index that fits, and the smallest that does not
    index = option.first_index
    while high - low > 1:
        change = {option.name: values[index]}
        result = evaluate(candidates, change, limit_micro_batch(candidates, chosen.settings, change), budget)
        if isinstance(result, str):
            if best or not result:
                return best
            return Proposal(name=title, values=change, changes_learning=changes_learning, note=result)
        if result.fits:
            low = index
        else:
            high = index
        if result.fits or low < 0:  # the smallest so far if none fits
            best = proposal_of(title, change, result, changes_learning=changes_learning)
        is_as_fast = not changes_learning and result.comparable_seconds <= chosen.comparable_seconds * TIE_RATIO
        if result.fits and (is_as_fast or len(result.trace.events) > _REFINED_EVENTS):
            break
        index = (low + high) // 2
    return best


def limit_micro_batch(candidates: Candidates, settings: Settings, change: Mapping[str, Any]) -> Settings:
    """Return the settings with a microbatch no larger than the changed effective batch."""
    effective_batch = int(change.get("effective_batch", candidates.loaded.effective_batch))
    size = samples_per_shard(effective_batch, settings)
    return settings.replace(micro_batch=min(settings.micro_batch or size, size))


def is_possible(loaded: LoadedRecipe, change: Mapping[str, Any]) -> bool:
    try:
        loaded.replace(**change)
    except UsageError:
        return False
    return True
