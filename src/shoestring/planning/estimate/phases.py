"""Peak tensor memory in each phase of an update."""

from __future__ import annotations

from shoestring.planning.estimate.allocator import round_up
from shoestring.planning.trace.record import Alloc, Free, Phase, Trace


def peak_tensor_bytes(trace: Trace) -> dict[str, int]:
    """Return the peak bytes of tensors, rounded as by the allocator, while the model is loaded and in each phase of the
    measured update.

    For phases that run once per microbatch it is the largest peak. Workspaces, slack and context are excluded.
    """
    live = 0
    peaks: dict[str, int] = {}
    phase: Phase | None = None
    for event in trace.events:
        if isinstance(event, Phase):
            phase = event
        elif isinstance(event, Alloc):
            live += round_up(trace.storages[event.storage].bytes)
        elif isinstance(event, Free):
            live -= round_up(trace.storages[event.storage].bytes)
        if phase and (phase.update == 1 or phase.name == "model") and phase.name != "end":
            name = "loading" if phase.name == "model" else phase.name
            peaks[name] = max(peaks.get(name, 0), live)
    return peaks
