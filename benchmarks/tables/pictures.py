"""Pictures of predictions beside measurements, by device and technique, as SVG: one dot for each committed row.

A dot is at the error of a prediction, and a thin line is its range. A measurement lies at zero, so a line that does not
cross zero is a range that does not hold the measurement.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from benchmarks.tables import gpu
from benchmarks.tables.markdown import Row, read_result
from benchmarks.tables.measurements import measurements, technique

from shoestring.base.units import plural


@dataclass(frozen=True, kw_only=True)
class Point:
    """A prediction and its range as errors relative to the measurement."""

    name: str
    value: float
    low: float
    high: float


Groups = Mapping[str, list[Point]]

_WIDTH, _LEFT, _RIGHT, _TOP, _BOTTOM = 820, 250, 70, 46, 34
_LEAST_HEIGHT, _POINT_HEIGHT = 22, 1.6
_STYLE = """<style>
text { font: 12px system-ui, sans-serif; fill: #333 }
.small { font-size: 11px; fill: #666 }
.head { font-weight: bold; font-size: 13px }
.grid { stroke: #ccc } .zero { stroke: #333 } .range { stroke: #1a6fb0; stroke-opacity: .3 }
.dot { fill: #1a6fb0 } .outside { fill: #c62828 } .outside-range { stroke: #c62828; stroke-opacity: .5 }
@media (prefers-color-scheme: dark) {
  text { fill: #ddd } .small { fill: #aaa } .grid { stroke: #555 } .zero { stroke: #ddd }
  .range { stroke: #64b5f6 } .dot { fill: #64b5f6 } .outside { fill: #ef9a9a } .outside-range { stroke: #ef9a9a }
}
</style>"""


def memory() -> str:
    """Return the picture of predicted reserved memory."""
    groups: dict[str, list[Point]] = {}
    for row in _rows("memory_lora"):
        if "reserved" in row:
            kind = row["group"].replace("none", "fp16").replace("nf4", "NF4")
            _add(groups, f"T4 · LoRA, {kind}", row["id"], row["reserved"])
    for row in _rows("memory_train"):
        _add(groups, "T4 · full training (allocated)", row["id"], row)
    for row in _rows("memory_xmem"):
        _add(groups, f"three GPUs of xMem · {row['group']}s", row["id"], row)
    for result in gpu.results():
        for row in gpu.rows_of(result, "memory"):
            values = {**row, "measured": row["measured_reserved"], "estimate": row["reserved"]}
            _add(groups, f"{_short(result['environment']['device'])} · recipes", row["id"], values)
    _add_users(groups, "memory", lambda measured: measured["memory_bytes"])
    return _picture("Error of the predicted memory (reserved by PyTorch)", groups, limit=0.4)


def time() -> str:
    """Return the picture of predicted seconds of an update."""
    groups: dict[str, list[Point]] = {}
    for row in _rows("time_lora"):
        kind = row["group"].replace("none", "fp16").replace("nf4", "NF4")
        _add(groups, f"T4 · LoRA, {kind}", row["id"], row)
    for name in ("time_train", "time_cards"):
        for row in _rows(name):
            device, _, precision = row["group"].rsplit(" ", 2)  # between them is the model or the publication
            about = f"full training, {precision}" if name == "time_train" else precision
            _add(groups, f"{device} · {about}", row["id"], row)
    for result in gpu.results():
        for row in gpu.rows_of(result, "time"):
            _add(groups, f"{_short(result['environment']['device'])} · recipes", row["id"], row)
    _add_users(groups, "update", lambda measured: measured["update"]["value"])
    return _picture("Error of the predicted seconds of an update", groups, limit=1.0)


PICTURES: Mapping[str, Callable[[], str]] = {
    "docs/images/accuracy-memory.svg": memory,
    "docs/images/accuracy-time.svg": time,
}
"""The function that draws each file, by its path in the repository."""


def _rows(name: str) -> Iterable[Row]:
    return (row for row in read_result(name)["rows"] if not row.get("skipped") and row.get("fitted", True))


def _add(groups: dict[str, list[Point]], group: str, name: str, row: Row) -> None:
    value, low, high = (row[key] / row["measured"] - 1 for key in ("estimate", "low", "high"))
    groups.setdefault(group, []).append(Point(name=name, value=value, low=low, high=high))


def _add_users(groups: dict[str, list[Point]], quantity: str, measured: Callable[[Row], float]) -> None:
    for name, content in measurements().items():
        predicted = content["predicted"][quantity]
        if content["device"]["name"] != "cpu" and None not in predicted.values():
            values = {**predicted, "estimate": predicted["value"], "measured": measured(content["measured"])}
            _add(groups, f"{_short(content['device']['name'])} · users, {technique(content)}", name, values)


def _short(device: str) -> str:
    return device.removeprefix("NVIDIA ")


def _picture(title: str, groups: Groups, *, limit: float) -> str:
    """Draw a row for each group. Errors beyond `limit` are at the edge, as triangles."""
    heights = [max(_LEAST_HEIGHT, 8 + _POINT_HEIGHT * len(points)) for points in groups.values()]
    bottom = _TOP + sum(heights)
    ticks = [limit * step / 4 for step in range(-4, 5)]
    shapes = [
        f'<text x="{_LEFT}" y="16" class="head">{escape(title)}</text>',
        f'<text x="{_LEFT}" y="32" class="small">one dot a run, a line its predicted range; red: the range does not '
        "hold the measurement</text>",
    ]
    for tick in ticks:
        x, text = _x(tick, limit), f"{tick:+.0%}" if tick else "0"
        shapes += [
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{bottom:.1f}" class="{"grid" if tick else "zero"}"/>',
            f'<text x="{x:.1f}" y="{bottom + 16:.1f}" text-anchor="middle" class="small">{text}</text>',
        ]
    top = float(_TOP)
    for (group, points), height in zip(groups.items(), heights, strict=True):
        middle = top + height / 2
        shapes += [
            f'<text x="{_LEFT - 10}" y="{middle + 4:.1f}" text-anchor="end">{escape(group)}</text>',
            f'<text x="{_WIDTH - _RIGHT + 12}" y="{middle + 4:.1f}" class="small">{plural(len(points), "run")}</text>',
            *_dots(points, top + 4, height - 8, limit),
        ]
        top += height
    height = bottom + _BOTTOM
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:.0f}" role="img" '
        f'aria-label="{escape(title)}">\n{_STYLE}\n' + "\n".join(shapes) + "\n</svg>\n"
    )


def _dots(points: Sequence[Point], top: float, height: float, limit: float) -> Iterable[str]:
    for index, point in enumerate(sorted(points, key=lambda point: point.value)):
        y = top + height * (index + 0.5) / len(points)
        holds = point.low <= 0 <= point.high
        low, high, x = _x(point.low, limit), _x(point.high, limit), _x(point.value, limit)
        name = f"<title>{escape(point.name)}: {point.value:+.1%} ({point.low:+.0%} to {point.high:+.0%})</title>"
        yield (
            f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{y:.1f}" y2="{y:.1f}" '
            f'class="{"range" if holds else "outside-range"}"/>'
        )
        kind = "dot" if holds else "outside"
        if abs(point.value) > limit:
            tip = 5 if point.value > 0 else -5
            yield f'<path d="M{x:.1f} {y - 3:.1f}l{tip} 3l{-tip} 3z" class="{kind}">{name}</path>'
        else:
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.4" class="{kind}">{name}</circle>'


def _x(error: float, limit: float) -> float:
    share = (max(-limit, min(limit, error)) + limit) / (2 * limit)
    return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)
