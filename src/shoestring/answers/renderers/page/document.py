"""A document as a page."""

from collections.abc import Callable, Sequence
from functools import singledispatch

from shoestring.answers import document as elements
from shoestring.answers.document import (
    Bar,
    Code,
    Command,
    Document,
    Drawing,
    Element,
    Inline,
    Items,
    Labels,
    LineBreak,
    Paragraph,
    Section,
    Span,
    Status,
    Swatch,
    Table,
)
from shoestring.answers.renderers import structure, tables
from shoestring.answers.renderers.markup import EMPTY, Content, Markup, element, facts, image, join, table
from shoestring.answers.renderers.notebook import drawing
from shoestring.answers.renderers.page import charts
from shoestring.answers.renderers.page.frame import html
from shoestring.answers.renderers.structure import title

_CLASSES = {"faint": "muted", "good": "verdict", "bad": "verdict no", "caution": "verdict no", "note": "muted"}
_TONES = {"good": "color: var(--green)", "caution": "color: var(--orange)", "bad": "color: var(--vermillion)"}
_DRAWINGS: dict[type, Callable[..., Markup]] = {
    elements.LineChart: charts.line_chart,
    elements.Breakdown: charts.breakdown,
    elements.BarChart: charts.bar_chart,
    elements.Histogram: charts.histogram,
    elements.Matrix: charts.matrix,
    elements.Timeline: charts.timeline,
}


def render(document: Document, *, refresh_seconds: int | None = None) -> Markup:
    """Return a document as a file, which the browser loads again every `refresh_seconds`."""
    name = f"{document.title}: {document.status}" if document.status else document.title
    return html(name, element("main", _parts(document)), refresh_seconds=refresh_seconds)


def _parts(document: Document) -> Content:
    """Return the heading with what is before the first section, the key figures as cards, and the rest."""
    before, after = structure.split(document)
    status = [element("span", document.status, class_=f"status {_class(document.status)}")] if document.status else []
    cards = [
        element("div", element("dt", title(item.name)), element("dd", item.value, element("small", item.details)))
        for item in structure.key_figures(document.content)
    ]
    header = element(
        "header",
        element("div", element("h1", document.title), *status),
        element("p", document.subtitle, class_="muted") if document.subtitle else EMPTY,
        _content(before, 2),
        element("dl", *cards, class_="cards") if cards else EMPTY,
    )
    footer = element("footer", _inline(document.footer)) if document.footer else EMPTY
    return [header, _content(after, 2), footer]


def _content(content: Sequence[Element], level: int) -> list[Content]:
    """Return elements below a heading of a level."""
    rendered: list[Content] = []
    for rows, following in structure.groups(content):
        texts = [(title(fact.title), _content(fact.content, level)) for fact in rows]
        pairs = [pair for pair in texts if pair[1]]
        rendered += [element("div", facts(pairs), class_="texts")] if pairs else []
        rendered += [element_html(item, level) for item in following]
    return [item for item in rendered if item]


def _inline(content: Inline) -> Content:
    if isinstance(content, str):
        return content
    if isinstance(content, LineBreak):
        return Markup("<br>")
    if isinstance(content, Swatch):
        return element("i", class_="swatch", style=f"background: var(--{content.color})")
    if isinstance(content, Status):
        return element("span", content.word, class_=f"ending {_class(content.word)}")
    if isinstance(content, Span):
        if content.tone == "faint":
            return element("span", content.text, class_="muted")
        style = {"style": _TONES[content.tone]} if content.tone in _TONES else {}
        return element("b", content.text, **style) if content.tone not in ("", "note") else content.text
    return [_inline(part) for part in content]


def _class(status: str) -> str:
    return status.replace(" ", "-")


@singledispatch
def element_html(item: object, level: int) -> Markup:  # noqa: ARG001 (for what is registered)
    """Return an element, or what is in the cell of a table, as HTML; empty if nothing of it is shown.

    `level` is that of the headings of sections, which only elements with others inside pass on.
    """
    return _single(item)


@singledispatch
def _single(item: object) -> Markup:
    """Return an element with no others inside."""
    raise TypeError(f"a page cannot show {type(item).__name__}")


@_single.register(str)
@_single.register(Span)
@_single.register(Status)
@_single.register(LineBreak)
@_single.register(Swatch)
@_single.register(list)
@_single.register(tuple)
def _text(content: Inline) -> Markup:
    return join(_inline(content))


@_single.register
def _document(document: Document) -> Markup:
    return join(_parts(document))


@element_html.register
def _section(section: Section, level: int) -> Markup:
    content = _content(section.content, level + 1)
    if not content:
        return EMPTY
    if section.is_folded:
        return element("details", element("summary", title(section.title)), content)
    return join([element(f"h{level}", title(section.title)) if section.title else EMPTY, content])


@_single.register
def _paragraph(paragraph: Paragraph) -> Markup:
    if paragraph.figure or not paragraph.text:
        return EMPTY
    class_ = _CLASSES.get(paragraph.tone, "")
    text = element("b", _inline(paragraph.text)) if paragraph.tone == "strong" else _inline(paragraph.text)
    return element("p", text, class_=class_) if class_ else element("p", text)


@_single.register
def _command(command: Command) -> Markup:
    purpose = element("p", title(command.purpose)) if command.purpose else EMPTY
    return join([purpose, element("pre", command.text)])


@_single.register
def _code(code: Code) -> Markup:
    lines = element("pre", code.text)
    return element("details", element("summary", title(code.title)), lines) if code.title else lines


@_single.register
def _items(items: Items) -> Markup:
    return element("ul", [element("li", _inline(text)) for text in items.texts])


@_single.register
def _labels(labels: Labels) -> Markup:
    remark = element("p", labels.remark, class_="muted") if labels.remark else EMPTY
    return join([facts((name.replace("_", " "), value) for name, value in labels.pairs), remark])


@_single.register
def _bar(bar: Bar) -> Markup:
    total = sum(bar.shares)
    parts = [element("i", style=f"width: {100 * share / max(1.0, total):.2f}%") for share in bar.shares]
    return element("span", parts, class_=f"bar {_class(bar.status)}" if total <= 1 else "bar failed")


@_single.register
def _sparkline(curve: elements.Sparkline) -> Markup:
    return drawing.sparkline(curve.values, "var(--blue)")


@_single.register
def _image(picture: elements.Image) -> Markup:
    caption = element("figcaption", picture.caption) if picture.caption else EMPTY
    return element("figure", image(picture.content, picture.description), caption)


@element_html.register
def _row(row: elements.Row, level: int) -> Markup:
    if all(isinstance(item, Section) for item in row.content):
        content = [element("section", part) for part in _content(row.content, level)]
        return element("div", content, class_="columns") if content else EMPTY
    content = [part for item in row.content if (part := element_html(item, level))]
    is_pictures = all(isinstance(item, elements.Image) for item in row.content)
    return element("div", content, class_="pictures" if is_pictures else "figures") if content else EMPTY


@element_html.register
def _table(content: Table, level: int) -> Markup:
    head = [_inline(column.name) for column in content.columns] if content.has_head else []
    classes = ["number" if column.is_numeric else "prose" if column.is_prose else "" for column in content.columns]

    def rows(of_folded: bool) -> Markup:
        chosen = [row for index, row in enumerate(content.rows) if (index in content.folded) is of_folded]
        return (
            table(head, [[element_html(cell, level) for cell in row] for row in chosen], classes) if chosen else EMPTY
        )

    if not content.folded:
        return rows(False)
    summary = f"{content.folded_title} ({len(content.folded)})"
    return join([rows(False), element("details", element("summary", summary), rows(True))])


@element_html.register
def _metrics(metrics: elements.Metrics, level: int) -> Markup:
    return join([element_html(item, level) for item in tables.metric_tables(metrics)])


@_single.register
def _drawing(item: Drawing) -> Markup:
    drawn = _DRAWINGS[type(item)](item)
    if not drawn:
        return EMPTY
    caption = element("figcaption", element("b", title(item.title)), element("span", item.caption))
    return element("figure", caption, drawn, class_="wide" if item.is_wide else "")
