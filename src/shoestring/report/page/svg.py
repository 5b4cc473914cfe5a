"""Figures as inline SVG: drawn by matplotlib, coloured and set in type by the page around them."""

import io
import re
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from shoestring.report.markup import Markup, element

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's palette, which every kind of colour vision tells apart (https://jfly.uni-koeln.de/color/), and four
# tones of the page. A figure is drawn in these; in the page each becomes the custom property of its name, so that
# one drawing suits light and dark.
BLUE, ORANGE, GREEN, VERMILLION, PURPLE, SKY, YELLOW = (
    "#0072b2",
    "#e69f00",
    "#009e73",
    "#d55e00",
    "#cc79a7",
    "#56b4e9",
    "#f0e442",
)
INK, MUTED, LINE, CARD = "#1f2328", "#59636e", "#d1d9e0", "#fefefe"
_PROPERTIES = {
    BLUE: "blue",
    ORANGE: "orange",
    GREEN: "green",
    VERMILLION: "vermillion",
    PURPLE: "purple",
    SKY: "sky",
    YELLOW: "yellow",
    INK: "ink",
    MUTED: "muted",
    LINE: "line",
    CARD: "card",
}
_STYLE = {
    "axes.axisbelow": True,
    "axes.edgecolor": LINE,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.labelcolor": MUTED,
    "axes.labelsize": 8.5,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "date.converter": "concise",
    "figure.facecolor": "none",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 8.5,
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "legend.borderaxespad": 0.2,
    "legend.borderpad": 0,
    "legend.columnspacing": 1.4,
    "legend.frameon": False,
    "legend.handlelength": 1.4,
    "lines.linewidth": 1.4,
    "savefig.facecolor": "none",
    # Real text: it can be searched, is read aloud, and takes the page's font.
    "svg.fonttype": "none",
    # Metric names come from recipes; a dollar sign in one is no formula.
    "text.parse_math": False,
    "text.color": INK,
    "xtick.color": LINE,
    "xtick.labelcolor": MUTED,
    "ytick.color": LINE,
    "ytick.labelcolor": MUTED,
    "ytick.major.size": 0,
}


def draw(label: str, paint: Callable[["Axes"], None], *, width: float, height: float) -> Markup:
    """What `paint` draws on one pair of axes, `width` by `height` points, as SVG that says `label` to a reader.

    The same drawing gives the same text, byte for byte.
    """
    import matplotlib
    from matplotlib.figure import Figure

    style: Any = {**_STYLE, "svg.hashsalt": label}
    with matplotlib.rc_context(style), warnings.catch_warnings():
        # Text is drawn by the browser: what matplotlib's own font lacks does not matter.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure = Figure(figsize=(width / 72, height / 72), layout="constrained")
        paint(figure.subplots())
        written = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(written, format="svg", metadata=nothing)
    return element(
        "svg", _inline(written.getvalue()), viewBox=f"0 0 {width:g} {height:g}", role="img", aria_label=label
    )


def _inline(document: str) -> Markup:
    """The drawing inside an SVG document, fit to stand in a page beside others."""
    drawing = document[document.index("</defs>") + len("</defs>") : document.rindex("</svg>")]
    # Names of groups repeat from figure to figure; nothing refers to them.
    drawing = re.sub(r'<g id="[^"]*"', "<g", drawing)
    for colour, name in _PROPERTIES.items():
        drawing = drawing.replace(colour, f"var(--{name})")
    return Markup(drawing)
