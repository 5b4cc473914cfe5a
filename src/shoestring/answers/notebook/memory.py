"""The memory of a plan or an estimate: its parts as one bar against the capacity, with the range."""

from shoestring.answers.markup import EMPTY, Markup, element
from shoestring.answers.notebook import drawing
from shoestring.answers.notebook.layout import BLUE, FAINT, GRAY, GREEN, ORANGE, legend, section
from shoestring.answers.page import svg
from shoestring.answers.wording import memory_text
from shoestring.base.units import bytes_text
from shoestring.planning.estimate.memory import Breakdown

_COLORS = (BLUE, ORANGE, GREEN, svg.PURPLE, svg.SKY, svg.VERMILLION, "#8f6ed5", "#b5a020", "#5f9ea0")
_SMALL = 0.35
"""Below this share of the capacity the parts are drawn once more in full width."""


def memory(breakdown: Breakdown, *, has_tile: bool = False) -> Markup:
    """Render the peak, its range, the capacity and all parts, the largest first.

    A tile that has the numbers replaces the sentence, unless the model does not fit while it is loaded.
    """
    parts = sorted(breakdown.parts, key=lambda part: -part.bytes)
    capacity, peak = max(1, breakdown.capacity_bytes), max(1, breakdown.peak_bytes)
    whole = max(capacity, breakdown.high_bytes * 1.04 if breakdown.high_bytes > capacity else 0)
    colored = [(_COLORS[index] if index < len(_COLORS) else GRAY, part) for index, part in enumerate(parts)]
    is_small = peak < _SMALL * whole
    usage = [(BLUE, peak / whole)] if is_small else [(color, part.bytes / whole) for color, part in colored]
    above = whole > capacity
    bar = element(
        "div",
        drawing.bar(usage, height=22, least="2px" if is_small else "0"),
        drawing.mark(capacity / whole) if above else EMPTY,
        style="position:relative;margin-top:6px",
    )
    scale = f"dashed: the capacity, {bytes_text(capacity)}" if above else "line below the bar: the predicted range"
    caption = element(
        "div",
        element("span", f"{peak / capacity:.0%} of {bytes_text(capacity)}"),
        " ",
        element("span", scale),
        style=f"{FAINT};display:flex;justify-content:space-between;gap:10px",
    )
    zoomed = [
        drawing.zoom(peak / whole),
        drawing.bar([(color, part.bytes / peak) for color, part in colored], height=22),
    ]
    return section(
        "Memory",
        EMPTY if has_tile and breakdown.loading_bytes <= capacity else element("div", memory_text(breakdown)),
        bar,
        drawing.span(breakdown.low_bytes / whole, peak / whole, breakdown.high_bytes / whole),
        caption,
        zoomed if is_small else EMPTY,
        legend((color, f"{part.name} {bytes_text(part.bytes)}", part.source) for color, part in colored),
    )
