"""Proposals with their costs: changes to the training result or the requested settings, which a plan never makes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from shoestring.base.config import as_json
from shoestring.base.errors import TraceError, UsageError
from shoestring.base.settings import Settings
from shoestring.base.units import bytes_text
from shoestring.hardware.catalog import Target, smallest_gpu
from shoestring.planning.candidates import Candidate, Candidates
from shoestring.planning.search import TIE_RATIO, collect_candidates, fastest
from shoestring.planning.shares import samples_per_shard
from shoestring.planning.trace.record import Facts, Trace
from shoestring.planning.weight_type import with_weight_type
from shoestring.recipe.option_notes import Cheaper
from shoestring.recipe.options import Adaptation, LoadedRecipe, option_fields, with_defaults

_SMALLER_BATCH = Cheaper("a smaller effective batch, whose completions are generated all at once")
"""Of a recipe that generates samples: otherwise an effective batch is divided into microbatches."""

ADAPTATIONS: Sequence[tuple[Mapping[str, Any], str]] = (
    ({"optimizer_states": "8bit"}, "8-bit optimizer states"),
    ({"lora_r": 8}, "LoRA adapters on frozen weights"),
    ({"lora_r": 8, "quantization": "nf4"}, "LoRA adapters on frozen 4-bit weights"),
)
"""Options of any recipe (`options.Adaptation`) that save memory, while all weights are trained."""

FROZEN: Sequence[tuple[Mapping[str, Any], str]] = (({"quantization": "nf4"}, "frozen weights in 4 bits"),)
"""The same for a model whose weights are frozen already, because only adapters are trained."""

_CHOSEN = ("micro_batch", "precision", "checkpointing", "optimizer_kernel")
"""Settings that a plan chooses if they are left open."""

_LEAST_SAVED = 0.1
"""The least share of the peak that a proposal has to save, unless it saves time."""

BUDGET = 60_000
"""Trace events that proposals may cost in addition to a plan that fits: about five seconds."""
BUDGET_WITHOUT_A_PLAN = 600_000
"""The same budget when no settings fit and the proposals have to find a change that does: four traces of a model with 8
billion parameters."""

_REFINED_EVENTS = 100_000
"""Events of the longest trace, of some three seconds, for which a value larger than one that fits is tried."""


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A change, its description and its cost; costs are None if they were not traced or cannot be predicted."""

    name: str
    """What is changed."""
    values: Mapping[str, Any]
    """The values for `--set`; empty for a change of the target."""
    changes_learning: bool
    """Whether the training result changes beyond rounding."""
    trains: bool = True
    """Whether the engine can run it."""
    fits: bool | None = None
    """Whether the run fits with the change."""
    peak_bytes: int | None = None
    """The peak of memory with it."""
    high_bytes: int | None = None
    """The upper bound of that peak."""
    update_seconds: float | None = None
    """The seconds of an update with it."""
    note: str = ""
    """What else the user should know of it."""
    limit: Literal["memory", "disk"] = "memory"
    """The limit that `fits` refers to."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The settings that the costs were computed with."""

    def json(self) -> dict[str, Any]:
        return {**vars(self), "values": as_json(self.values), "settings": dict(self.settings)}

    @property
    def command(self) -> str:
        """The arguments to add to a command line."""
        return " ".join(f"--set {name}={value}" for name, value in as_json(self.values).items())


class _Budget:
    """A budget for traces, counted in events, which are reproducible, unlike seconds."""

    def __init__(self, events: int, chosen: Candidate) -> None:
        self._remaining_events, self._chosen = events, chosen

    def allows_trace(self) -> bool:
        return self._remaining_events >= len(self._chosen.trace.events)

    def divide(self, parts: int) -> "list[_Budget]":
        """Return budgets with equal parts of what remains."""
        return [_Budget(self._remaining_events // parts, self._chosen) for _ in range(parts)]

    def spend(self, trace: Trace) -> None:
        if trace is not self._chosen.trace:  # settings that a trace does not depend on share one
            self._remaining_events -= len(trace.events)


def proposals(
    candidates: Candidates, chosen: Candidate, requested: Settings, *, fits: bool, facts: Facts
) -> list[Proposal]:
    """Return the changes that help, with their costs as far as computing them takes no longer than the plan itself.

    If the plan does not fit, the proposal of an option has the largest value that fits.
    """
    budget = _Budget(BUDGET if fits else BUDGET_WITHOUT_A_PLAN, chosen)
    # Adaptations have a budget of their own where they save the most.
    own_budget = _Budget(BUDGET_WITHOUT_A_PLAN, chosen) if not fits or _divides_weights(chosen.settings) else budget
    if fits:
        # The order decides which proposals are traced before the budget is spent.
        return [
            proposal
            for proposal in (
                *_propose_options(candidates, chosen, budget, fits),
                *_propose_adaptations(candidates, chosen, own_budget, facts),
                *_propose_settings(candidates, chosen, budget),
                *_propose_subset(candidates, chosen, facts),
            )
            if _helps(proposal, chosen)
        ]
    for values, _ in _adaptations(candidates.loaded, facts):
        candidates.prefetch(_adapted(chosen.settings), values)  # while others are traced
    for option in [*_cheaper_options(candidates.loaded)][1:]:
        change = {option.name: option.values[option.first_index]}
        candidates.prefetch(_limit_micro_batch(candidates, chosen.settings, change), change)
    settings = [
        *_propose_open_settings(candidates, chosen, requested),
        *_propose_settings(candidates, chosen, budget),
    ]
    options = [*_propose_options(candidates, chosen, budget, fits)]
    adaptations = _propose_adaptations(candidates, chosen, own_budget, facts)
    return [*settings, *adaptations, *options, *_propose_subset(candidates, chosen, facts)]


def _helps(proposal: Proposal, chosen: Candidate) -> bool:
    """Return whether the proposal saves 5% of the time or 10% of the memory, or its effect is unknown."""
    if proposal.peak_bytes is None or "subset" in proposal.values or not proposal.trains:
        return True
    saves_memory = proposal.peak_bytes < (1 - _LEAST_SAVED) * chosen.memory.peak_bytes
    if "optimizer_states" in proposal.values:  # it is meant to save memory; only the bytes of its time are known
        return saves_memory
    faster = proposal.update_seconds is not None and proposal.update_seconds < 0.95 * chosen.seconds
    return faster or saves_memory


def propose_smaller_files(
    chosen: Candidate, disk_bytes: Callable[[Candidate], int], limit_bytes: int | None
) -> list[Proposal]:
    """Propose light weights in half precision and a single checkpoint if the run's `disk_bytes` exceed `limit_bytes`:
    the first of them that suffices, or else both.
    """
    if limit_bytes is None or disk_bytes(chosen) <= limit_bytes:
        return []
    smaller: list[tuple[str, dict[str, Any]]] = []
    if chosen.settings.light_weights == "own":
        smaller.append(("best and last weights in half precision", {"light_weights": "fp16"}))
    if chosen.settings.keep_checkpoints != 1:
        smaller.append(("one full checkpoint", {"keep_checkpoints": 1}))
    if len(smaller) > 1:
        smaller.append((" and ".join(name for name, _ in smaller), smaller[0][1] | smaller[1][1]))
    result: list[Proposal] = []
    for name, values in smaller:
        candidate = replace(chosen, settings=chosen.settings.replace(**values))
        needs = disk_bytes(candidate)
        proposal = _proposal(name, values, candidate, changes_learning=False)
        fits = needs <= limit_bytes
        result = [replace(proposal, limit="disk", fits=fits, note=f"{bytes_text(needs)} of disk space")]
        if fits:
            break
    return result


def smallest_change(proposed: Sequence[Proposal], limit: str = "memory") -> Proposal | None:
    """Return the first trainable proposal that fits; those with the same training result come first."""
    fitting = [
        proposal
        for proposal in proposed
        if proposal.fits and proposal.trains and proposal.values and proposal.limit == limit
    ]
    return min(fitting, key=lambda proposal: proposal.changes_learning, default=None)


def smallest_sufficient_gpu(target: Target, memory_bytes: int) -> str:
    """Describe the catalogue's smallest GPU with at least `memory_bytes`; return "" if there is none."""
    gpu = smallest_gpu(memory_bytes)
    return f"{gpu.title} ({bytes_text(gpu.memory_bytes)})" if gpu and target.device.kind == "cuda" else ""


def _propose_open_settings(candidates: Candidates, chosen: Candidate, requested: Settings) -> Iterator[Proposal]:
    """Propose that the plan chooses the settings that were requested and do not fit."""
    fixed = {name: value for name in _CHOSEN if (value := getattr(requested, name)) is not None}
    if not fixed:
        return
    layout = {name: getattr(chosen.settings, name) for name in ("gpus", "logical_shards", "sharding")}
    best = fastest(collect_candidates(candidates, requested.replace(**dict.fromkeys(_CHOSEN), **layout)))
    if best:
        values = {name: getattr(best.settings, name) for name in _CHOSEN}
        changed = {name: value for name, value in values.items() if value not in (None, fixed.get(name))}
        yield _proposal(f"{', '.join(fixed)} chosen by the plan", changed, best, changes_learning=False)


def _propose_settings(candidates: Candidates, chosen: Candidate, budget: _Budget) -> Iterator[Proposal]:
    """Propose settings that change the result at most by rounding, and the time by an amount that is not predicted."""
    if candidates.target.device.kind == "cpu":
        return
    changes: list[tuple[str, dict[str, Any], str]] = []
    if chosen.settings.allocator != "expandable":
        changes.append(("expandable memory segments", {"allocator": "expandable"}, ""))
    states = sum(part.bytes for part in chosen.memory.parts if part.name == "optimizer states")
    if (
        chosen.settings.offload == "no"
        and not chosen.settings.cuda_graphs
        and states > _LEAST_SAVED * chosen.memory.peak_bytes
    ):
        slower = "slower by an amount that is not predicted, because the CPU updates the optimizer states"
        changes.append(("optimizer states in host memory", {"offload": "optimizer"}, slower))
    for name, values, note in changes:
        settings = chosen.settings.replace(**values)
        if "offload" in values:
            settings = settings.replace(optimizer_kernel=None)
        result = _evaluate(candidates, {}, settings, budget)
        if isinstance(result, Candidate):
            yield _proposal(name, values, result, changes_learning=False, note=note, timed="offload" not in values)
        elif result:
            yield Proposal(name=name, values=values, changes_learning=False, note=result)


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


def _cheaper_options(loaded: LoadedRecipe) -> Iterator[_Option]:
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
        if values := [value for value in cheaper.than(present) if _is_possible(loaded, {name: value})]:
            half = values[-1] if cheaper.values else min(values, key=lambda value: abs(value - present / 2))
            yield _Option(name=name, cheaper=cheaper, values=values, half=half)


def _propose_options(candidates: Candidates, chosen: Candidate, budget: _Budget, fits: bool) -> Iterator[Proposal]:
    """Propose the values of the recipe's options that make samples cheaper."""
    options = [*_cheaper_options(candidates.loaded)]
    # Of a plan that fits one value of each option is traced; otherwise a search takes several traces.
    budgets = [budget] * len(options) if fits else budget.divide(len(options))
    for option, share in zip(options, budgets, strict=True):
        searched = replace(option, values=[option.half]) if fits else option
        if proposal := _propose_largest_that_fits(candidates, chosen, share, searched):
            yield proposal


def _propose_largest_that_fits(
    candidates: Candidates, chosen: Candidate, budget: _Budget, option: _Option
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
        result = _evaluate(candidates, change, _limit_micro_batch(candidates, chosen.settings, change), budget)
        if isinstance(result, str):
            if best or not result:
                return best
            return Proposal(name=title, values=change, changes_learning=changes_learning, note=result)
        if result.fits:
            low = index
        else:
            high = index
        if result.fits or low < 0:  # the smallest so far if none fits
            best = _proposal(title, change, result, changes_learning=changes_learning)
        is_as_fast = not changes_learning and result.comparable_seconds <= chosen.comparable_seconds * TIE_RATIO
        if result.fits and (is_as_fast or len(result.trace.events) > _REFINED_EVENTS):
            break
        index = (low + high) // 2
    return best


def _propose_adaptations(
    candidates: Candidates, chosen: Candidate, budget: _Budget, facts: Facts
) -> Iterator[Proposal]:
    """Propose the adaptations of any recipe's model that are not in use yet."""
    for values, title in _adaptations(candidates.loaded, facts):
        settings = _adapted(chosen.settings)
        result = _evaluate(candidates, {**values, **_stored_type(candidates, values, settings)}, settings, budget)
        if isinstance(result, Candidate):
            yield _proposal(title, values, result, changes_learning=True)
        elif result:
            yield Proposal(name=title, values=values, changes_learning=True, note=result)


def _adaptations(loaded: LoadedRecipe, facts: Facts) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Yield the options that adapt the recipe's model in a way that is not in use yet, with their description."""
    known, default = option_fields(loaded), vars(Adaptation())
    is_frozen = facts.parameters_trainable < facts.parameters_total
    for values, title in FROZEN if is_frozen else ADAPTATIONS:
        unused = all(name in known and loaded.options.get(name) == default[name] for name in values)
        if "lora_r" in values and not facts.is_pretrained:
            continue  # frozen random weights are of no use
        if unused and _is_possible(loaded, values):
            yield values, title


def _stored_type(candidates: Candidates, values: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """Return the type of the weights that adapters would freeze, if the recipe leaves it to the plan."""
    loaded = candidates.loaded
    if "lora_r" not in values or with_defaults(type(loaded.recipe), loaded.name).options.get("weights") != "auto":
        return {}
    adapted = with_weight_type(loaded.replace(**values, weights="auto"), candidates.target, settings)
    return {"weights": adapted.options["weights"]}


def _adapted(settings: Settings) -> Settings:
    """Return the settings of a model that is adapted: another kind of optimizer has its own kernels.

    Its weights or states may have scales that cannot be divided, and need less memory whole.
    """
    return settings.replace(
        optimizer_kernel=None, streamed_blocks=None, sharding="ddp" if _divides_weights(settings) else settings.sharding
    )


def _divides_weights(settings: Settings) -> bool:
    return settings.sharding in ("zero2", "zero3")


def _propose_subset(candidates: Candidates, chosen: Candidate, facts: Facts) -> Iterator[Proposal]:
    """Propose a part of the training data, if the recipe has data and all of it is in use.

    It would not shorten a run whose number of updates is set.
    """
    options = candidates.loaded.options
    if not facts.samples or options.get("subset", 0) is not None or options.get("max_updates") is not None:
        return
    yield Proposal(
        name="a stratified tenth of the data, which takes a tenth of the time",
        values={"subset": 0.1},
        changes_learning=True,
        fits=chosen.fits,
        peak_bytes=chosen.memory.peak_bytes,
        high_bytes=chosen.memory.high_bytes,
        update_seconds=chosen.time.value if chosen.time else None,
        settings=chosen.settings.json(),
    )


def _evaluate(
    candidates: Candidates, change: Mapping[str, Any], settings: Settings, budget: _Budget
) -> Candidate | str:
    """Return the candidate of the change, or the reason for not tracing it; "" if the change is not possible."""
    if not budget.allows_trace():
        return "not evaluated, because tracing it takes as long as the plan: plan with --set to evaluate it"
    try:
        candidate = candidates.evaluate_with_options(change, settings)
    except (UsageError, TraceError):
        return ""
    budget.spend(candidate.trace)
    return candidate


def _limit_micro_batch(candidates: Candidates, settings: Settings, change: Mapping[str, Any]) -> Settings:
    """Return the settings with a microbatch no larger than the changed effective batch."""
    effective_batch = int(change.get("effective_batch", candidates.loaded.effective_batch))
    size = samples_per_shard(effective_batch, settings)
    return settings.replace(micro_batch=min(settings.micro_batch or size, size))


def _is_possible(loaded: LoadedRecipe, change: Mapping[str, Any]) -> bool:
    try:
        loaded.replace(**change)
    except UsageError:
        return False
    return True


def _proposal(
    name: str,
    values: Mapping[str, Any],
    candidate: Candidate,
    *,
    changes_learning: bool,
    trains: bool = True,
    note: str = "",
    timed: bool = True,
) -> Proposal:
    return Proposal(
        name=name,
        values=values,
        changes_learning=changes_learning,
        trains=trains,
        fits=candidate.fits,
        peak_bytes=candidate.memory.peak_bytes,
        high_bytes=candidate.memory.high_bytes,
        update_seconds=candidate.time.value if candidate.time and timed else None,
        note=note,
        settings=candidate.settings.json(),
    )
