"""The size of a checkpoint, from a trace."""

from __future__ import annotations

from dataclasses import dataclass

from shoestring.base.units import KIB
from shoestring.planning.trace.record import Alloc, Free, Part, Trace

_SAVED: tuple[Part, ...] = ("optimizer states", "averaged weights")
"""The parts that a full checkpoint has besides the weights."""
SMALL_FILES = 64 * KIB
"""An upper bound of the manifest, the state and the headers of the tensors' files."""


@dataclass(frozen=True, kw_only=True)
class CheckpointBytes:
    """Bytes on disk of a full checkpoint, which resumes exactly and excludes frozen weights, and of light weights."""

    full: int
    light: int


def checkpoint_bytes(trace: Trace, shares: int = 1) -> CheckpointBytes:
    """Return both sizes, with tensors uncompressed as in memory.

    The trace is that of a GPU which has one of `shares` shares of the optimizer's states, the largest one.
    """
    size = _saved_bytes(trace) + sum(trace.host_bytes.get(part, 0) for part in _SAVED)
    if trace.second:  # the states of the weights that are on another GPU
        size += _saved_bytes(trace.second)
    light = trace.facts.weight_bytes + SMALL_FILES
    return CheckpointBytes(full=light - trace.facts.frozen_bytes + shares * size, light=light)


def _saved_bytes(trace: Trace) -> int:
    states: dict[int, int] = {}
    for event in trace.events:
        if isinstance(event, Alloc) and trace.storages[event.storage].part in _SAVED:
            states[event.storage] = trace.storages[event.storage].bytes
        elif isinstance(event, Free):
            states.pop(event.storage, None)
    return sum(states.values())


def saving_seconds(size: float, disk_rate: float | None) -> float | None:
    """Return the seconds of a save of `size` bytes to disk: each byte is written, then read back for verification.

    Training continues meanwhile, except during the copy to host memory. None if `disk_rate`, in bytes/s, was not
    measured, as platforms do not publish theirs.
    """
    return 2 * size / disk_rate if disk_rate else None
