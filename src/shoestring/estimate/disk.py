"""Bytes of a checkpoint, from a trace."""

from __future__ import annotations

from dataclasses import dataclass

from shoestring.trace.record import Alloc, Free, Trace
from shoestring.units import KIB

_SMALL_FILES = 64 * KIB
"""Manifest, state and the headers of the tensors' files, generously."""


@dataclass(frozen=True, kw_only=True)
class CheckpointBytes:
    """Bytes on disk of a checkpoint that resumes exactly, without frozen weights, and of the weights to use alone."""

    full: int
    light: int


def checkpoint_bytes(trace: Trace) -> CheckpointBytes:
    """Both sizes: tensors as they are in memory, uncompressed."""
    states: dict[int, int] = {}
    for event in trace.events:
        if isinstance(event, Alloc) and trace.storages[event.storage].part == "optimizer states":
            states[event.storage] = trace.storages[event.storage].bytes
        elif isinstance(event, Free):
            states.pop(event.storage, None)
    light = trace.facts.weight_bytes + _SMALL_FILES
    return CheckpointBytes(full=light - trace.facts.frozen_bytes + sum(states.values()), light=light)


def saving_seconds(size: float, disk_rate: float | None) -> float | None:
    """Seconds until a save of `size` bytes is on the disk: each byte is written, and read back to be verified.

    Training goes on beside it but for the copy into host memory. None where `disk_rate`, bytes/s, was not measured:
    platforms do not say theirs.
    """
    return 2 * size / disk_rate if disk_rate else None
