"""Where in an update its memory peaks."""

from __future__ import annotations

from shoestring.estimate.allocator import rounded
from shoestring.trace.record import Alloc, Free, Phase, Trace


def tensor_bytes(trace: Trace) -> dict[str, int]:
    """The most bytes of tensors, rounded as the allocator rounds, in each phase of the measured update.

    Of phases that come for each microbatch the largest. Workspaces, slack and context are not among them.
    """
    live = 0
    peaks: dict[str, int] = {}
    phase: Phase | None = None
    for event in trace.events:
        if isinstance(event, Phase):
            phase = event
        elif isinstance(event, Alloc):
            live += rounded(trace.storages[event.storage].bytes)
        elif isinstance(event, Free):
            live -= rounded(trace.storages[event.storage].bytes)
        if phase and phase.update == 1 and phase.name != "end":
            peaks[phase.name] = max(peaks.get(phase.name, 0), live)
    return peaks
