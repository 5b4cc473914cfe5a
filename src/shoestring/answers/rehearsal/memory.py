"""The memory that a rehearsed script has used, by GPU and by phase."""

from collections.abc import Iterator

from shoestring.answers.document import Bar, Cell, Column, Element, KeyFigure, Paragraph, Section, Table
from shoestring.answers.rehearsal.timeline import chart
from shoestring.answers.rehearsal.verdict import fullest, used_bytes
from shoestring.base.units import bytes_text, seconds_text
from shoestring.runs.rehearse.rehearsal import Rehearsal

_UNKNOWN = "\N{EN DASH}"
_WIDE = 98
"""The columns of a terminal that has space for all details of a GPU."""


def sections(rehearsal: Rehearsal) -> Iterator[Element]:
    """Yield the peaks of each GPU and of each phase, and the time line."""
    if not rehearsal.used_gpu:
        return
    device = fullest(rehearsal)
    if device:
        details = f"of {bytes_text(device.capacity_bytes)} on GPU {device.index}"
        figure = KeyFigure("peak memory", bytes_text(used_bytes(device)), details)
        yield Section("", [Paragraph(details, figure=figure)], is_extra=True)
    if rehearsal.devices:
        yield Section("memory by GPU", [_devices(rehearsal)])
    if rehearsal.phases:
        yield Section("memory by phase", [_phases(rehearsal)])
    timeline = chart(rehearsal)
    if timeline:
        yield Section("", [timeline])


def _devices(rehearsal: Rehearsal) -> Table:
    columns = [
        Column("", can_wrap=False),
        Column("in use", is_numeric=True, can_wrap=False),
        Column("", can_wrap=False),
        Column("of", is_numeric=True, can_wrap=False),
        Column("tensors", is_numeric=True, can_wrap=False, least_width=_WIDE),
        Column("reserved", is_numeric=True, can_wrap=False, least_width=_WIDE),
        Column("CUDA context", is_numeric=True, can_wrap=False, least_width=_WIDE),
    ]
    rows: list[list[Cell]] = [
        [
            f"GPU {device.index}",
            bytes_text(used_bytes(device)),
            _bar(used_bytes(device), device.capacity_bytes, _is_full(rehearsal, device.index)),
            bytes_text(device.capacity_bytes),
            bytes_text(device.peak_allocated_bytes),
            bytes_text(device.peak_reserved_bytes),
            bytes_text(device.outside_bytes),
        ]
        for device in rehearsal.devices
    ]
    return Table(columns, rows)


def _phases(rehearsal: Rehearsal) -> Table:
    device = fullest(rehearsal)
    capacity = device.capacity_bytes if device else rehearsal.target.device.memory_bytes
    outside = device.outside_bytes if device else 0
    has_times = any(phase.seconds is not None for phase in rehearsal.phases)
    error = rehearsal.out_of_memory if rehearsal.end == "out of memory" else None
    columns = [
        Column("", can_wrap=False),
        Column("reserved", is_numeric=True, can_wrap=False),
        Column("", can_wrap=False),
        Column("tensors", is_numeric=True, can_wrap=False),
        *([Column("predicted time", is_numeric=True, can_wrap=False, least_width=80)] if has_times else []),
    ]
    rows: list[list[Cell]] = []
    for phase in rehearsal.phases:
        is_full = error is not None and error.phase == phase.name
        time: list[Cell] = [seconds_text(phase.seconds) if phase.seconds is not None else _UNKNOWN]
        rows.append(
            [
                phase.name,
                bytes_text(phase.peak_reserved_bytes),
                _bar(phase.peak_reserved_bytes, capacity - outside, is_full),
                bytes_text(phase.peak_allocated_bytes),
                *(time if has_times else []),
            ]
        )
    return Table(columns, rows)


def _is_full(rehearsal: Rehearsal, index: int) -> bool:
    error = rehearsal.out_of_memory
    return rehearsal.end == "out of memory" and error is not None and error.device == index


def _bar(used: int, capacity: int, is_full: bool) -> Bar:
    return Bar([min(1.0, used / max(1, capacity))], "does not fit" if is_full else "")
