"""Which proposals a plan has, and in which order."""

from collections.abc import Iterator

from shoestring.base.settings import Settings
from shoestring.planning.candidates import Candidate, Candidates
from shoestring.planning.proposals.adaptations import adapted, divides_weights, propose_adaptations, unused_adaptations
from shoestring.planning.proposals.budget import BUDGET, BUDGET_WITHOUT_A_PLAN, Budget
from shoestring.planning.proposals.options import cheaper_options, limit_micro_batch, propose_options
from shoestring.planning.proposals.proposal import LEAST_SAVED, Proposal
from shoestring.planning.proposals.settings import propose_open_settings, propose_settings
from shoestring.planning.trace.record import Facts


def proposals(
    candidates: Candidates, chosen: Candidate, requested: Settings, *, fits: bool, facts: Facts
) -> list[Proposal]:
    """Return the changes that help, with their costs as far as computing them takes no longer than the plan itself.

    If the plan does not fit, the proposal of an option has the largest value that fits.
    """
    budget = Budget(BUDGET if fits else BUDGET_WITHOUT_A_PLAN, chosen)
    # Adaptations have a budget of their own where they save the most.
    own_budget = Budget(BUDGET_WITHOUT_A_PLAN, chosen) if not fits or divides_weights(chosen.settings) else budget
    if fits:
        # The order decides which proposals are traced before the budget is spent.
        return [
            proposal
            for proposal in (
                *propose_options(candidates, chosen, budget, fits),
                *propose_adaptations(candidates, chosen, own_budget, facts),
                *propose_settings(candidates, chosen, budget),
                *_propose_subset(candidates, chosen, facts),
            )
            if _helps(proposal, chosen)
        ]
    for values, _ in unused_adaptations(candidates.loaded, facts):
        candidates.prefetch(adapted(chosen.settings), values)  # while others are traced
    for option in [*cheaper_options(candidates.loaded)][1:]:
        change = {option.name: option.values[option.first_index]}
        candidates.prefetch(limit_micro_batch(candidates, chosen.settings, change), change)
    settings = [
        *propose_open_settings(candidates, chosen, requested),
        *propose_settings(candidates, chosen, budget),
    ]
    options = [*propose_options(candidates, chosen, budget, fits)]
    adaptations = propose_adaptations(candidates, chosen, own_budget, facts)
    return [*settings, *adaptations, *options, *_propose_subset(candidates, chosen, facts)]


def _helps(proposal: Proposal, chosen: Candidate) -> bool:
    """Return whether the proposal saves 5% of the time or 10% of the memory, or its effect is unknown."""
    if proposal.peak_bytes is None or "subset" in proposal.values or not proposal.trains:
        return True
    saves_memory = proposal.peak_bytes < (1 - LEAST_SAVED) * chosen.memory.peak_bytes
    if "optimizer_states" in proposal.values:  # it is meant to save memory; only the bytes of its time are known
        return saves_memory
    faster = proposal.update_seconds is not None and proposal.update_seconds < 0.95 * chosen.seconds
    return faster or saves_memory


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
