"""Bars and curves, drawn without matplotlib because a run that trains is drawn every few seconds.

All are as wide as the page. They contain no text: it would shrink with them on a narrow page, and remain in disorder
where SVG is removed. Colors come from the caller.
"""

from collections.abc import Iterable, Sequence

from shoestring.answers.renderers.markup import EMPTY, Markup, element, join
from shoestring.answers.renderers.notebook.layout import TRACK

_GRID = "rgba(128,128,128,.25)"
_STROKE = {"fill": "none", "vector_effect": "non-scaling-stroke"}


def bar(parts: Iterable[tuple[str, float]], *, height: int = 10, least: str = "0") -> Markup:
    """Return a bar of (color, share of its width); each part is at least `least` wide."""
    filled = [
        element("div", style=f"width:{100 * share:.3f}%;min-width:{least};background:{color}")
        for color, share in parts
        if share > 0
    ]
    radius = min(6, height // 2)
    return element(
        "div",
        filled,
        style=f"display:flex;gap:1px;height:{height}px;border-radius:{radius}px;overflow:hidden;background:{TRACK}",
    )


def span(low: float, value: float, high: float) -> Markup:
    """Return a range below a bar: a line from `low` to `high` with its ends, and the `value`; shares of the width."""
    low_x, value_x, high_x = (1000 * min(1.0, max(0.0, share)) for share in (low, value, high))
    path = f"M{low_x:.1f} 1V9M{low_x:.1f} 5H{high_x:.1f}M{high_x:.1f} 1V9"
    point = dot(value_x, 5, "currentColor", 6)
    line = element("path", d=path, stroke="currentColor", stroke_width="1.5", **_STROKE)
    return _svg([line, point], 10, 12)


def zoom(share: float) -> Markup:
    """Return the shape between a bar and a second one that shows the first `share` of it in full width."""
    shape = element("polygon", points=f"0,0 {1000 * share:.1f},0 1000,14 0,14", fill="rgba(128,128,128,.16)")
    return _svg([shape], 14, 14)


def mark(share: float) -> Markup:
    """Return a vertical line over the bar above it."""
    place = f"left:{100 * share:.2f}%"
    return element("div", style=f"position:absolute;top:-4px;bottom:-4px;width:0;border-left:2px dashed;{place}")


def curves(
    lines: Iterable[tuple[Sequence[tuple[float, float]], str, bool]], levels: Iterable[tuple[float, str]] = ()
) -> Markup:
    """Return curves of (x, y) as shares of the width and the height, each with its color, as a line or as dots.

    Levels are dashed horizontal lines at a share of the height, each with its color.
    """
    shapes = [
        element("path", d=f"M0 {height}H1000", stroke=_GRID, stroke_width="1", **_STROKE) for height in (5, 100, 195)
    ]
    for y, color in levels:
        path = f"M0 {195 - 190 * y:.1f}H1000"
        shapes.append(element("path", d=path, stroke=color, stroke_width="1.5", stroke_dasharray="6 5", **_STROKE))
    for points, color, has_dots in lines:
        places = [(1000 * x, 195 - 190 * y) for x, y in points]
        if has_dots:
            shapes += [dot(x, y, color, 8) for x, y in places]
        else:
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
            shapes.append(
                element("polyline", points=path, stroke=color, stroke_width="2", stroke_linejoin="round", **_STROKE)
            )
    return _svg(shapes, 200, 180)


def sparkline(values: Sequence[float], color: str) -> Markup:
    """Return equally spaced values as a small line beside text."""
    if len(values) < 2:
        return EMPTY
    low, high = min(values), max(values)
    scale = 16 / ((high - low) or 1.0)
    step = 100 / (len(values) - 1)
    points = " ".join(f"{step * index:.1f},{18 - (value - low) * scale:.1f}" for index, value in enumerate(values))
    line = element("polyline", points=points, stroke=color, stroke_width="1.5", **_STROKE)
    return element("svg", line, viewBox="0 0 100 20", width="100", height="20", style="vertical-align:middle")


def dot(x: float, y: float, color: str, size: int) -> Markup:
    """Return a round dot of `size` pixels, which stays round when the drawing is stretched."""
    return element(
        "path",
        d=f"M{x:.1f} {y:.1f}h0.01",
        stroke=color,
        stroke_width=str(size),
        stroke_linecap="round",
        **_STROKE,
    )


def _svg(content: Sequence[Markup], height: int, pixels: int) -> Markup:
    return element(
        "svg",
        join(content),
        viewBox=f"0 0 1000 {height}",
        preserveAspectRatio="none",
        width="100%",
        height=str(pixels),
        aria_hidden="true",
        style="display:block;overflow:visible",
    )
