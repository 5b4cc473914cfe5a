"""Smaller files of a run."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from shoestring.base.units import bytes_text
from shoestring.planning.candidates import Candidate
from shoestring.planning.proposals.proposal import Proposal, proposal_of


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
        proposal = proposal_of(name, values, candidate, changes_learning=False)
        fits = needs <= limit_bytes
        result = [replace(proposal, limit="disk", fits=fits, note=f"{bytes_text(needs)} of disk space")]
        if fits:
            break
    return result
