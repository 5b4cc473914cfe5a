"""Settings that change the result at most by rounding."""

from collections.abc import Iterator
from typing import Any

from shoestring.base.settings import Settings
from shoestring.planning.candidates import Candidate, Candidates
from shoestring.planning.proposals.budget import Budget, evaluate
from shoestring.planning.proposals.proposal import LEAST_SAVED, Proposal, proposal_of
from shoestring.planning.search import collect_candidates, fastest

_CHOSEN = ("micro_batch", "precision", "checkpointing", "optimizer_kernel")
"""Settings that a plan chooses if they are left open."""


def propose_open_settings(candidates: Candidates, chosen: Candidate, requested: Settings) -> Iterator[Proposal]:
    """Propose that the plan chooses the settings that were requested and do not fit."""
    fixed = {name: value for name in _CHOSEN if (value := getattr(requested, name)) is not None}
    if not fixed:
        return
    layout = {name: getattr(chosen.settings, name) for name in ("gpus", "logical_shards", "sharding")}
    best = fastest(collect_candidates(candidates, requested.replace(**dict.fromkeys(_CHOSEN), **layout)))
    if best:
        values = {name: getattr(best.settings, name) for name in _CHOSEN}
        changed = {name: value for name, value in values.items() if value not in (None, fixed.get(name))}
        yield proposal_of(f"{', '.join(fixed)} chosen by the plan", changed, best, changes_learning=False)


def propose_settings(candidates: Candidates, chosen: Candidate, budget: Budget) -> Iterator[Proposal]:
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
        and states > LEAST_SAVED * chosen.memory.peak_bytes
    ):
        slower = "slower by an amount that is not predicted, because the CPU updates the optimizer states"
        changes.append(("optimizer states in host memory", {"offload": "optimizer"}, slower))
    for name, values, note in changes:
        settings = chosen.settings.replace(**values)
        if "offload" in values:
            settings = settings.replace(optimizer_kernel=None)
        result = evaluate(candidates, {}, settings, budget)
        if isinstance(result, Candidate):
            yield proposal_of(name, values, result, changes_learning=False, note=note, timed="offload" not in values)
        elif result:
            yield Proposal(name=name, values=values, changes_learning=False, note=result)
