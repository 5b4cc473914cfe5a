"""An answer as a document: what it says, and nothing of how a terminal, a page or a notebook shows it.

An answer is built once, by the module of its name. The renderers know the elements below and nothing else, so what is
added to a document appears wherever the answer is shown. Texts may come from files: the renderers escape them. Names
may be keys, whose underscores become spaces where a reader does not type them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Tone: TypeAlias = Literal["", "strong", "faint", "note", "good", "caution", "bad"]
Color: TypeAlias = Literal["blue", "orange", "green", "vermillion", "purple", "sky", "yellow", "muted"]


@dataclass(frozen=True)
class Span:
    """A part of a text that differs in its weight or its color."""

    text: str
    tone: Tone


@dataclass(frozen=True)
class Status:
    """A word of the vocabulary of verdicts and endings, such as `fits`, `warn` or `finished`, in its color."""

    word: str


@dataclass(frozen=True)
class LineBreak:
    """The end of a line within a text."""


@dataclass(frozen=True)
class Swatch:
    """The color of a series, before its name."""

    color: Color


Inline: TypeAlias = "str | Span | Status | LineBreak | Swatch | Sequence[Inline]"


@dataclass(frozen=True)
class KeyFigure:
    """A number that is shown large, with its name and details."""

    name: str
    value: str
    details: str = ""


@dataclass(frozen=True)
class Paragraph:
    """A text. Its key figure, if it has one, says the same in a few words, and replaces it where there is space."""

    text: Inline
    tone: Tone = ""
    figure: KeyFigure | None = None
    can_wrap: bool = True
    """Whether a terminal may break it; a line with commands is pasted."""


GAP = Paragraph("")
"""An empty line between paragraphs, where they have no margins."""


@dataclass(frozen=True)
class Command:
    """A command to copy: one line, however long. `purpose` says what it is for where no sentence before it does."""

    text: str
    purpose: str = ""


@dataclass(frozen=True)
class Code:
    """Preformatted lines, which a face that can fold shows folded below their title, if they have one."""

    text: str
    title: str = ""


@dataclass(frozen=True)
class Items:
    """A list of texts. With `is_clipped`, a terminal shows of each what fits on a line."""

    texts: Sequence[Inline]
    is_clipped: bool = False


@dataclass(frozen=True)
class Labels:
    """Short values with their names; a name is empty if the value says what it is. The remark follows them."""

    pairs: Sequence[tuple[str, str]]
    remark: str = ""


@dataclass(frozen=True)
class Bar:
    """Shares of a width, from the left, in the color of a status; more than 1 in total is drawn as too much."""

    shares: Sequence[float]
    status: str = ""


@dataclass(frozen=True)
class Image:
    """A PNG or JPEG file."""

    content: bytes
    description: str
    caption: str = ""


@dataclass(frozen=True)
class Row:
    """Elements beside each other, as far as the width allows."""

    content: "Sequence[Element]"


@dataclass(frozen=True)
class Sparkline:
    """Equally spaced values as a small curve within a line of text."""

    values: Sequence[float]


Cell: TypeAlias = "Inline | Bar | Sparkline | Section"


@dataclass(frozen=True)
class Column:
    """A column of a table. A face that is narrower than `least_width` characters leaves it out."""

    name: Inline = ""
    is_numeric: bool = False
    is_prose: bool = False
    """Whether the cells are texts of several lines."""
    can_wrap: bool = True
    least_width: int = 0


@dataclass(frozen=True)
class Table:
    """Cells in columns; columns without names are a list of rows."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    folded: Sequence[int] = ()
    """Indices of the rows that are least important, which a face that can fold shows folded below the others."""
    folded_title: str = ""

    @property
    def has_head(self) -> bool:
        return any(column.name for column in self.columns)


@dataclass(frozen=True)
class Metric:
    """A measured value with its error, as text, and the value of the baseline that it is to exceed."""

    name: str
    text: str
    baseline: str = ""


@dataclass(frozen=True)
class MetricsPart:
    """The metrics of one part of the data, and of what was compared on it, by name."""

    name: str
    metrics: Sequence[Metric]
    compared: Sequence[tuple[str, Sequence[Metric]]] = ()


@dataclass(frozen=True)
class Metrics:
    """Metrics by part of the data: lines where there is little space, else a table."""

    parts: Sequence[MetricsPart]


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """What is common to drawings: a title, a caption, and `label`, a description for those who do not see it."""

    title: str = ""
    caption: str = ""
    label: str = ""
    is_wide: bool = False


@dataclass(frozen=True)
class Part:
    """A part of a breakdown, in bytes."""

    name: str
    bytes: float
    source: str = ""


@dataclass(frozen=True, kw_only=True)
class Breakdown(Drawing):
    """Parts of memory that sum to a peak, its predicted range, and the capacity; all in bytes."""

    parts: Sequence[Part]
    low: float
    high: float
    capacity: float | None = None
    measured: float | None = None

    @property
    def peak(self) -> float:
        return sum(part.bytes for part in self.parts)


@dataclass(frozen=True)
class Point:
    """A value of a curve, which stands for neighbouring values between `low` and `high`."""

    x: float
    y: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Series:
    """A curve. Single measurements have dots, of which the one at `best` is marked."""

    name: str
    points: Sequence[Point]
    color: Color
    has_dots: bool = False
    best: float | None = None
    latest: float | None = None
    """The last value, where the points are means."""
    keeps_peaks: bool = False
    """Whether a face that draws few points takes the highest of neighbouring ones, as for memory, or the last."""
    dash: str = "-"
    """A line style of matplotlib; more series than colors differ by it."""


@dataclass(frozen=True)
class Level:
    """A labeled horizontal line."""

    y: float
    text: str
    color: Color = "muted"


@dataclass(frozen=True, kw_only=True)
class LineChart(Drawing):
    """Curves over each other on one scale, which can be logarithmic for values that span orders of magnitude."""

    series: Sequence[Series]
    x: str
    y: str
    """The names of the axes."""
    levels: Sequence[Level] = ()
    band: tuple[float, float] | None = None
    """A range of `y` that is shaded."""
    marks: Sequence[float] = ()
    """Values of `x` with a dotted line."""
    end: float | None = None
    """The end of the axis."""
    has_legend: bool = False
    is_from_zero: bool = False
    is_scientific: bool = False
    can_be_logarithmic: bool = False


@dataclass(frozen=True, kw_only=True)
class BarChart(Drawing):
    """A group of bars for each category, with a bar for each series of values from 0 to 1."""

    categories: Sequence[str]
    series: Sequence[tuple[str, Color, Sequence[float]]]


@dataclass(frozen=True, kw_only=True)
class Histogram(Drawing):
    """The number of values between neighbouring edges."""

    edges: Sequence[float]
    counts: Sequence[float]
    x: str
    y: str


@dataclass(frozen=True, kw_only=True)
class Matrix(Drawing):
    """Counts of pairs, shaded by the share of a row."""

    rows: str
    columns: str
    """What the rows and the columns are."""
    names: Sequence[str]
    counts: Sequence[Sequence[float]]


@dataclass(frozen=True, kw_only=True)
class Interval:
    """Something with a beginning and an end in unix seconds, and moments in it, which have a mark."""

    name: str
    start: float
    end: float
    status: str
    moments: Sequence[float] = ()
    ends_with_a_kill: bool = False


@dataclass(frozen=True, kw_only=True)
class Timeline(Drawing):
    """Intervals on the wall clock, and the lengths of long (start, end) pauses between them."""

    intervals: Sequence[Interval]
    pauses: Sequence[tuple[float, float]] = ()
    moments: str = ""
    """What the moments are."""


Element: TypeAlias = (
    "Paragraph | Command | Code | Items | Labels | Bar | Image | Row | Table | Metrics | Breakdown | LineChart | "
    "BarChart | Histogram | Matrix | Timeline | Section | Document"
)


@dataclass(frozen=True)
class Section:
    """Elements below a title."""

    title: str
    content: Sequence[Element]
    tone: Tone = "strong"
    is_folded: bool = field(default=False, kw_only=True)
    """Whether a face that can fold shows only the title at first."""
    is_extra: bool = field(default=False, kw_only=True)
    """Whether a terminal, which can neither fold nor draw small, leaves it out."""


class Fact(Section):
    """A section whose title is so short that it stands beside its content."""


@dataclass(frozen=True, kw_only=True)
class Document:
    """An answer: what it is about, its status, and its content."""

    title: str
    status: str = ""
    subtitle: str = ""
    sentences: Sequence[Inline] | None = None
    """The heading as lines of text, for a terminal; None if it is title, status and subtitle."""
    content: Sequence[Element] = ()
    footer: Inline = ""


def is_steep(heights: Sequence[float]) -> bool:
    """Return whether positive values span orders of magnitude: on a linear scale, a steep drop and a flat line."""
    return min(heights) > 0 and max(heights) > 50 * min(heights)


def key_figure(name: str, value: str, details: str = "") -> Paragraph:
    """Return a key figure for which no sentence is needed."""
    text = f"{name}: {value}" + (f" ({details})" if details else "")
    return Paragraph(text, figure=KeyFigure(name, value, details))
