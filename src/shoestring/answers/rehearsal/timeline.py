"""The memory of a GPU over the updates of a rehearsal, as a curve below the GPU's capacity."""

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise

from shoestring.answers.document import Color, Level, LineChart, Point, Series
from shoestring.answers.rehearsal.verdict import name
from shoestring.base.units import GIB, MIB, bytes_text
from shoestring.runs.rehearse.rehearsal import MemoryPoint, Rehearsal

_MAX_POINTS = 300
_MOST_MARKS = 24
"""More changes of the phase, such as an evaluation after every second update, would hide the curve."""
_COLORS: tuple[Color, ...] = ("blue", "green", "purple", "sky")
_Place = tuple[float, MemoryPoint]


def chart(rehearsal: Rehearsal) -> LineChart | None:
    """Return the memory over the updates; None if there are no points."""
    points = rehearsal.timeline
    if not points:
        return None
    devices = sorted({point.device for point in points}, key=lambda device: -_peak(points, device))
    places = {device: _places([point for point in points if point.device == device]) for device in devices}
    capacity = _available(rehearsal, devices[0])
    unit, unit_name = (GIB, "GiB") if capacity >= GIB else (MIB, "MiB")
    fullest = places[devices[0]]
    series = [
        *(
            Series(
                name=f"peak of tensors on GPU {device}",
                points=_peaks([(x, point.allocated_bytes / unit) for x, point in places[device]]),
                latest=max(point.allocated_bytes for _, point in places[device]) / unit,
                color=_COLORS[index % len(_COLORS)],
                keeps_peaks=True,
            )
            for index, device in enumerate(devices)
        ),
        Series(
            name=f"peak reserved on GPU {devices[0]}",
            points=_peaks([(x, point.reserved_bytes / unit) for x, point in fullest]),
            latest=_peak(points, devices[0]) / unit,
            color="orange",
            keeps_peaks=True,
            dash="--",
        ),
        *_request(rehearsal, places, unit),
    ]
    return LineChart(
        title="Memory over the updates",
        caption="Update 0 is what precedes the first one. Dotted: the phase changes." if _marks(fullest) else "",
        label=f"Memory that {name(rehearsal)} uses on {rehearsal.target.name} over its updates",
        is_wide=True,
        series=series,
        x="update",
        y=unit_name,
        levels=[Level(capacity / unit, f"available {bytes_text(capacity)}", "vermillion")],
        marks=_marks(fullest),
        end=max(place for items in places.values() for place, _ in items),
        has_legend=True,
        is_from_zero=True,
    )


def _peak(points: Sequence[MemoryPoint], device: int) -> int:
    return max(point.reserved_bytes for point in points if point.device == device)


def _available(rehearsal: Rehearsal, index: int) -> int:
    """Return what the allocator can have of a GPU: its memory without the contexts."""
    for device in rehearsal.devices:
        if device.index == index:
            return device.capacity_bytes - device.outside_bytes
    return rehearsal.target.device.memory_bytes


def _places(points: Sequence[MemoryPoint]) -> list[_Place]:
    """Return the points with their places on the axis: those of update N lie between N and N + 1."""
    places: list[_Place] = []
    for update, group in groupby(points, key=lambda point: point.update):
        members = list(group)
        places += [(update + (index + 1) / len(members), point) for index, point in enumerate(members)]
    return places


def _peaks(values: Sequence[tuple[float, float]]) -> list[Point]:
    """Return about `_MAX_POINTS` points at most, each the highest of neighbouring values."""
    step = max(1, -(-len(values) // _MAX_POINTS))
    return [_highest(values[first : first + step]) for first in range(0, len(values), step)]


def _highest(values: Sequence[tuple[float, float]]) -> Point:
    heights = [height for _, height in values]
    return Point(x=values[-1][0], y=max(heights), low=max(heights), high=max(heights))


def _marks(places: Sequence[_Place]) -> list[float]:
    changes = [before[0] for before, after in pairwise(places) if before[1].phase != after[1].phase]
    return changes if len(changes) <= _MOST_MARKS else []


def _request(rehearsal: Rehearsal, places: dict[int, list[_Place]], unit: int) -> Iterator[Series]:
    """Yield the allocation that was refused, at the height that it would have led to."""
    error = rehearsal.out_of_memory
    if error is None or rehearsal.end != "out of memory":
        return
    x = places[error.device][-1][0] if error.device in places else float(error.update + 1)
    height = (error.reserved_bytes + error.requested_bytes) / unit
    points = [Point(x=x, y=height, low=height, high=height)]
    yield Series(name="refused", points=points, color="vermillion", has_dots=True)
