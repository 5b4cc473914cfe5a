"""The memory of a plan, corrected by what a probe has measured."""

from collections.abc import Sequence
from dataclasses import replace

from shoestring.base.units import MIB
from shoestring.planning.costs import COPY_SHARE
from shoestring.planning.estimate.memory import Breakdown, MemoryPart
from shoestring.planning.measurement import Measurement

UNEXPLAINED = "rest of the process"
COPY = "copy of the state for saving"
PLANNING = "planning in the same process"
_SOURCES = {
    UNEXPLAINED: "measured: what the other parts do not explain, such as libraries and the allocator's unused memory",
    PLANNING: "measured: what the process that plans and then trains has more in memory than a probe at its start",
    COPY: "the state in host memory while a checkpoint is written; the next save reuses its memory",
}
_LATER_BYTES = 64 * MIB
"""An assumption: by how much a process grows that a few updates do not show, by libraries that are loaded late, threads
that save, and fragments of the allocator. A check allows as much."""
_ENOUGH_UPDATES = 5
"""An assumption: in fewer updates, a process has shown at most half of its growth."""
_LATER_SHARE = 0.02
"""Workspaces of unknown size, as a share of the reserved memory, which later updates may need on a GPU: an assumption,
that of the prediction."""


def corrected_memory(memory: Breakdown, measured: Measurement, kind: str, *, lengths_vary: bool) -> Breakdown:
    """Return the memory on a device of this kind, with what was measured; unchanged if that is unknown."""
    if measured.peak_bytes is None:
        return memory
    if kind == "cpu":
        return _process_memory(memory, measured.peak_bytes, measured)
    return _gpu_memory(memory, measured.peak_bytes, lengths_vary=lengths_vary)


def _process_memory(memory: Breakdown, measured_bytes: int, measured: Measurement) -> Breakdown:
    """Return the memory of a process on a CPU, which was measured without planning and saving.

    The peak has these two as well. The low end is not above the predicted one, since a system that lacks memory takes
    pages of files from a process. The high end adds by how much the peak still grew when the probe ended, twice
    that after few updates, and what a process loads later; that of a probe that was not complete is not less than the
    predicted one.
    """
    copy = round(COPY_SHARE * (measured.state_bytes or 0))
    peak_bytes = measured_bytes + measured.planning_bytes + copy
    growing_bytes = measured.growing_bytes * (1 if measured.updates >= _ENOUGH_UPDATES else 2)
    high_bytes = peak_bytes + growing_bytes + _LATER_BYTES
    return replace(
        memory,
        parts=(
            *_parts_of(memory.parts, measured_bytes),
            *_part(PLANNING, measured.planning_bytes),
            *_part(COPY, copy),
        ),
        low_bytes=min(memory.low_bytes, measured_bytes),
        high_bytes=max(high_bytes, memory.high_bytes) if measured.problem else high_bytes,
        loading_bytes=min(memory.loading_bytes, peak_bytes),
    )


def _parts_of(parts: Sequence[MemoryPart], total: int) -> tuple[MemoryPart, ...]:
    """Return the parts with a rest that explains the total; smaller in proportion if their sum exceeds it."""
    predicted = sum(part.bytes for part in parts)
    if predicted > total:
        parts = tuple(replace(part, bytes=part.bytes * total // predicted) for part in parts)
    return (*parts, *_part(UNEXPLAINED, total - sum(part.bytes for part in parts)))


def _part(name: str, size: int) -> tuple[MemoryPart, ...]:
    return (MemoryPart(name=name, bytes=size, source=_SOURCES[name]),) if size else ()


def _gpu_memory(memory: Breakdown, reserved_bytes: int, *, lengths_vary: bool) -> Breakdown:
    """Return the memory of a GPU with another range.

    Memory that was reserved shows that a lower high end was wrong. If less was reserved than the low end, that was
    wrong, and the high end is lower only if all updates have the shapes of the first ones.
    """
    predicted = memory.reserved
    low = min(predicted.low, reserved_bytes)
    later_bytes = reserved_bytes + round(_LATER_SHARE * reserved_bytes)
    high = predicted.high
    if reserved_bytes > predicted.high:
        high = later_bytes
    elif not lengths_vary:
        high = min(predicted.high, max(predicted.value, later_bytes))
    outside = memory.high_bytes - predicted.high
    return replace(
        memory,
        low_bytes=memory.low_bytes - (predicted.low - low),
        high_bytes=max(memory.peak_bytes, high + outside),
        reserved=replace(predicted, low=low, high=high),
    )
