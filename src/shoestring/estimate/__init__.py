"""Estimate memory, time and disk usage from a trace: pure functions that do not import torch."""

from shoestring.estimate.disk import CheckpointBytes, checkpoint_bytes
from shoestring.estimate.memory import Breakdown, MemoryPart, memory
from shoestring.estimate.time import Seconds, update_seconds

__all__ = [
    "Breakdown",
    "CheckpointBytes",
    "MemoryPart",
    "Seconds",
    "checkpoint_bytes",
    "memory",
    "update_seconds",
]
