"""Figures as inline SVG: drawn by matplotlib, with the colors and fonts of the page."""

import io
import re
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from shoestring.answers.renderers.markup import Markup, element

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Paint: TypeAlias = Callable[["Axes"], None]
"""Paints on axes."""

# The palette of Okabe and Ito, which is distinguishable with any kind of color vision
# (https://jfly.uni-koeln.de/color/), and four tones of the page. In the page, each color is replaced by the CSS custom
# property of its name, so that one drawing suits the light and the dark color scheme.
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
    # Real text can be searched and read by screen readers, and uses the font of the page.
    "svg.fonttype": "none",
    # Metric names come from recipes; a dollar sign in a name does not start a formula.
    "text.parse_math": False,
    "text.color": INK,
    "xtick.color": LINE,
    "xtick.labelcolor": MUTED,
    "ytick.color": LINE,
    "ytick.labelcolor": MUTED,
    "ytick.major.size": 0,
}


def draw(label: str, paint: Paint, *, width: float, height: float) -> Markup:
    """Return the drawing of `paint` on axes of `width` by `height` points as SVG with the accessible name `label`.

    Equal drawings give equal text, byte for byte.
    """
    import matplotlib
    from matplotlib.figure import Figure

    style: Any = {**_STYLE, "svg.hashsalt": label}
    with matplotlib.rc_context(style), warnings.catch_warnings():
        # The browser renders the text, so glyphs that matplotlib's own font lacks do not matter.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure = Figure(figsize=(width / 72, height / 72), layout="constrained")
        paint(figure.subplots())
        buffer = io.StringIO()
        no_metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(buffer, format="svg", metadata=no_metadata)
    return element("svg", _inline(buffer.getvalue()), viewBox=f"0 0 {width:g} {height:g}", role="img", aria_label=label)


def _inline(document: str) -> Markup:
    """Extract the drawing of an SVG document for use in a page with other drawings."""
    drawing = document[document.index("</defs>") + len("</defs>") : document.rindex("</svg>")]
    # The ids of groups repeat between figures, and nothing refers to them.
    drawing = re.sub(r'<g id="[^"]*"', "<g", drawing)
    for color, name in _PROPERTIES.items():
        drawing = drawing.replace(color, f"var(--{name})")
    return Markup(drawing)
