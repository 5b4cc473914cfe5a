"""A document in a notebook."""

import math
from collections.abc import Iterator, Sequence
from functools import singledispatch

from shoestring.answers import document as elements
from shoestring.answers.document import (
    Bar,
    Cell,
    Code,
    Command,
    Document,
    Element,
    Inline,
    Items,
    Labels,
    LineBreak,
    Paragraph,
    Section,
    Series,
    Span,
    Status,
    Swatch,
    Table,
)
from shoestring.answers.renderers import structure, tables
from shoestring.answers.renderers.markup import EMPTY, Content, Markup, element, image, join
from shoestring.answers.renderers.notebook import drawing, layout
from shoestring.answers.renderers.notebook.layout import BLUE, FAINT, GRAY, GREEN, ORANGE, RED, STATUS_COLORS
from shoestring.answers.renderers.structure import title
from shoestring.base.units import bytes_text, count_text

_COLORS = {
    "blue": BLUE,
    "orange": ORANGE,
    "green": GREEN,
    "vermillion": "#d55e00",
    "purple": "#cc79a7",
    "sky": "#56b4e9",
    "yellow": "#b5a020",
    "muted": GRAY,
}
_TONES = {"faint": FAINT, "good": f"color:{GREEN}", "caution": f"color:{ORANGE}", "bad": f"color:{RED}"}
_PART_COLORS = (BLUE, ORANGE, GREEN, "#cc79a7", "#56b4e9", "#d55e00", "#8f6ed5", "#b5a020", "#5f9ea0")
_SMALL = 0.35
"""Below this share of the capacity the parts are drawn once more in full width."""
_MOST_CLASSES = 12
"""More do not fit beside each other."""


def render(document: Document) -> Markup:
    """Return a document as HTML: its heading, the key figures as tiles, and its content."""
    before, after = structure.split(document)
    figures = structure.key_figures(document.content)
    return layout.box(
        document.title,
        document.status,
        document.subtitle,
        _content(before),
        layout.tiles((figure.name, figure.value, figure.details) for figure in figures),
        _content(after),
        element("div", _inline(document.footer), style=FAINT) if document.footer else EMPTY,
    )


def _content(content: Sequence[Element]) -> list[Content]:
    rendered: list[Content] = []
    for facts, following in structure.groups(content):
        texts = [(element("span", title(fact.title), style=FAINT), _content(fact.content)) for fact in facts]
        rendered += [layout.table([row for row in texts if row[1]]), *map(element_html, following)]
    return [item for item in rendered if item]


def _inline(content: Inline) -> Content:
    if isinstance(content, str):
        return content
    if isinstance(content, LineBreak):
        return Markup("<br>")
    if isinstance(content, Swatch):
        square = f"display:inline-block;width:9px;height:9px;border-radius:2px;background:{_COLORS[content.color]}"
        return [element("span", style=square), " "]
    if isinstance(content, Status):
        return layout.pill(content.word)
    if isinstance(content, Span):
        style = {"style": _TONES[content.tone]} if content.tone in _TONES else {}
        if content.tone in ("", "note"):
            return content.text
        return element("span" if content.tone == "faint" else "b", content.text, **style)
    return [_inline(part) for part in content]


@singledispatch
def element_html(item: object) -> Markup:
    """Return an element, or what is in the cell of a table, as HTML; empty if nothing of it is shown."""
    raise TypeError(f"a notebook cannot show {type(item).__name__}")


@element_html.register(str)
@element_html.register(Span)
@element_html.register(Status)
@element_html.register(list)
@element_html.register(tuple)
def _text(content: Inline) -> Markup:
    return join(_inline(content))


element_html.register(Document, render)


@element_html.register
def _section(section: Section) -> Markup:
    content = _content(section.content)
    if not content:
        return EMPTY
    if not section.is_folded:
        return layout.section(title(section.title), *content) if section.title else join(content)
    lists = [item for item in section.content if isinstance(item, Items)]
    count = f" ({len(lists[0].texts)})" if len(lists) == len(section.content) == 1 else ""
    return layout.fold(title(section.title) + count, content)


@element_html.register
def _paragraph(paragraph: Paragraph) -> Markup:
    if paragraph.figure or not paragraph.text:
        return EMPTY
    tone = "faint" if paragraph.tone == "note" else paragraph.tone
    content = _inline(Span(paragraph.text, tone) if isinstance(paragraph.text, str) else paragraph.text)
    return element("div", content, style="margin:0 0 3px")


@element_html.register
def _command(command: Command) -> Markup:
    purpose = element("div", title(command.purpose), style="margin-top:6px") if command.purpose else EMPTY
    return join([purpose, layout.code(command.text)])


@element_html.register
def _code(code: Code) -> Markup:
    return layout.fold(title(code.title), layout.code(code.text)) if code.title else layout.code(code.text)


@element_html.register
def _items(items: Items) -> Markup:
    lines = [element("li", _inline(text), style="margin:1px 0") for text in items.texts]
    return element("ul", lines, style="margin:4px 0;padding-left:20px")


@element_html.register
def _labels(labels: Labels) -> Markup:
    pairs = layout.labels((name.replace("_", " "), value) for name, value in labels.pairs)
    return join([pairs, layout.lines([labels.remark]) if labels.remark else EMPTY])


@element_html.register
def _bar(bar: Bar, width: int = 200) -> Markup:
    total = sum(bar.shares)
    color = STATUS_COLORS.get(bar.status, BLUE if total <= 1 else RED)
    shares = [(color, share / max(1.0, total)) for share in bar.shares]
    return element("div", drawing.bar(shares, height=12, least="3px"), style=f"min-width:{width}px;margin:4px 0")


@element_html.register
def _sparkline(curve: elements.Sparkline) -> Markup:
    return drawing.sparkline(curve.values, BLUE)


@element_html.register
def _image(picture: elements.Image) -> Markup:
    caption = element("div", picture.caption, style=FAINT) if picture.caption else EMPTY
    return element("div", image(picture.content, picture.description), caption)


@element_html.register
def _row(row: elements.Row) -> Markup:
    parts = [element("div", part, style="flex:1 1 240px;min-width:0") for part in _content(row.content)]
    return element("div", parts, style="display:flex;flex-wrap:wrap;gap:4px 16px")


@element_html.register
def _table(table: Table) -> Markup:
    cells: list[list[Cell]] = [list(row) for row in table.rows]
    head = [_inline(column.name) for column in table.columns] if table.has_head else []
    width = 50 if head else 200
    numeric = [index for index, column in enumerate(table.columns) if column.is_numeric]

    def rows(of_folded: bool) -> Markup:
        chosen = [row for index, row in enumerate(cells) if (index in table.folded) is of_folded]
        return layout.table(
            [[_bar(cell, width) if isinstance(cell, Bar) else element_html(cell) for cell in row] for row in chosen],
            head,
            numeric,
        )

    folded = layout.fold(f"{table.folded_title} ({len(table.folded)})", rows(True)) if table.folded else EMPTY
    return join([rows(False), folded])


@element_html.register
def _metrics(metrics: elements.Metrics) -> Markup:
    return join(map(element_html, tables.metric_tables(metrics)))


@element_html.register
def _breakdown(breakdown: elements.Breakdown) -> Markup:
    """Render the parts as one bar against the capacity, with the range of the peak, the largest part first."""
    parts = sorted(breakdown.parts, key=lambda part: -part.bytes)
    peak = max(1.0, breakdown.peak)
    capacity = max(1.0, breakdown.capacity or breakdown.high)
    whole = max(capacity, breakdown.high * 1.04 if breakdown.high > capacity else 0)
    colored = [(_PART_COLORS[index] if index < len(_PART_COLORS) else GRAY, part) for index, part in enumerate(parts)]
    is_small = peak < _SMALL * whole
    usage = [(BLUE, peak / whole)] if is_small else [(color, part.bytes / whole) for color, part in colored]
    above = whole > capacity
    bar = element(
        "div",
        drawing.bar(usage, height=22, least="2px" if is_small else "0"),
        drawing.mark(capacity / whole) if above else EMPTY,
        style="position:relative;margin-top:6px",
    )
    measured = f"; measured {bytes_text(breakdown.measured)}" if breakdown.measured else ""
    scale = f"dashed: the capacity, {bytes_text(capacity)}" if above else "line below the bar: the predicted range"
    caption = element(
        "div",
        element("span", f"{peak / capacity:.0%} of {bytes_text(capacity)}{measured}"),
        " ",
        element("span", scale),
        style=f"{FAINT};display:flex;justify-content:space-between;gap:10px",
    )
    zoomed = [
        drawing.zoom(peak / whole),
        drawing.bar([(color, part.bytes / peak) for color, part in colored], height=22),
    ]
    return join(
        [
            bar,
            drawing.span(breakdown.low / whole, peak / whole, breakdown.high / whole),
            caption,
            zoomed if is_small else EMPTY,
            layout.legend((color, f"{part.name} {bytes_text(part.bytes)}", part.source) for color, part in colored),
        ]
    )


@element_html.register
def _line_chart(chart: elements.LineChart) -> Markup:
    series = [curve for curve in chart.series if curve.points]
    heights = [point.y for curve in series for point in curve.points]
    if not heights:
        return EMPTY
    marked = [*heights, *(level.y for level in chart.levels), *([0.0] if chart.is_from_zero else [])]
    low, high = min(marked), max(marked)
    is_logarithmic = chart.can_be_logarithmic and elements.is_steep(heights)
    scale = math.log if is_logarithmic else float
    bottom, span = scale(low), (scale(high) - scale(low)) or 1.0
    end = chart.end or max(curve.points[-1].x for curve in series) or 1.0

    def line(curve: Series) -> tuple[list[tuple[float, float]], str, bool]:
        places = [(min(1.0, point.x / end), (scale(point.y) - bottom) / span) for point in curve.points]
        return places, _COLORS[curve.color], curve.has_dots or len(places) == 1

    middle = math.sqrt(low * high) if is_logarithmic else (low + high) / 2
    numbers = element(
        "div",
        [element("div", _number(value)) for value in (high, middle, low)],
        style=f"{FAINT};display:flex;flex-direction:column;justify-content:space-between;text-align:right;height:180px",
    )
    axis = element(
        "div",
        element("span", "0"),
        " ",
        element("span", f"{chart.x} {end:,.0f}"),
        style=f"{FAINT};display:flex;justify-content:space-between",
    )
    levels = [((scale(level.y) - bottom) / span, _COLORS[level.color]) for level in chart.levels]
    figure = element("div", drawing.curves(map(line, series), levels), axis, style="flex:1;min-width:0")
    return join(
        [
            _caption(chart),
            element("div", layout.dotted(_legend(series, chart.levels)), style="font-size:12px;margin-bottom:6px"),
            element("div", numbers, figure, style="display:flex;gap:8px"),
        ]
    )


def _legend(series: Sequence[Series], levels: Sequence[elements.Level]) -> Iterator[Content]:
    for level in levels:
        mark = "\N{BOX DRAWINGS LIGHT DOUBLE DASH HORIZONTAL} "
        yield [element("span", mark, style=f"color:{_COLORS[level.color]}"), level.text]
    for curve in series:
        mark = "\N{BLACK CIRCLE} " if curve.has_dots else "\N{BOX DRAWINGS HEAVY HORIZONTAL} "
        yield [
            element("span", mark, style=f"color:{_COLORS[curve.color]}"),
            f"{curve.name} {_number(curve.points[-1].y if curve.latest is None else curve.latest)}",
        ]


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


@element_html.register
def _drawing(item: elements.Drawing) -> Markup:
    return join([_caption(item), element_html(tables.table(item))])


@element_html.register
def _matrix(matrix: elements.Matrix) -> Markup:
    if len(matrix.names) > _MOST_CLASSES:
        return EMPTY
    rows = [[name, *_shaded(row)] for name, row in zip(matrix.names, matrix.counts, strict=True)]
    head = [f"{matrix.rows} \N{RIGHTWARDS ARROW} {matrix.columns}", *matrix.names]
    return join([_caption(matrix), layout.table(rows, head, numeric=range(1, len(head)))])


def _shaded(row: Sequence[float]) -> list[Markup]:
    total = sum(row) or 1.0
    return [
        element(
            "span",
            count_text(round(value)),
            style="display:inline-block;min-width:44px;padding:1px 6px;border-radius:4px;text-align:center;"
            f"background:rgba(42,127,212,{0.75 * value / total:.2f})",
        )
        for value in row
    ]


def _caption(item: elements.Drawing) -> Markup:
    if not item.title:
        return EMPTY
    return element("div", element("b", title(item.title)), " ", element("span", item.caption, style=FAINT))
