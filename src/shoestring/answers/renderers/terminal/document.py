"""A document in a terminal."""

from collections.abc import Iterable, Iterator, Sequence
from functools import singledispatch
from io import StringIO
from itertools import groupby

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from shoestring.answers import document as elements
from shoestring.answers.document import (
    Column,
    Document,
    Element,
    Fact,
    Inline,
    LineBreak,
    Section,
    Series,
    Span,
    Status,
    Swatch,
)
from shoestring.answers.renderers import tables
from shoestring.answers.renderers.terminal.blocks import chart, sparkline
from shoestring.answers.renderers.terminal.console import SafeConsole
from shoestring.base.streams import message_text, one_line, printable

WIDTH = 100
"""Columns of a text that is not printed on a terminal."""
_BAR = 30
_CHART_HEIGHT, _CHART_LABELS, _CHART_WIDTH = 7, 10, 100
_TONES = {
    "": "",
    "strong": "bold",
    "faint": "dim",
    "note": "yellow",
    "good": "bold green",
    "caution": "bold yellow",
    "bad": "bold red",
}
_COLORS = {
    "blue": "blue",
    "orange": "yellow",
    "green": "green",
    "vermillion": "red",
    "purple": "magenta",
    "sky": "cyan",
    "yellow": "bright_yellow",
    "muted": "dim",
}
_STATUSES = {
    "pass": ("✓ ", "green"),
    "warn": ("! ", "bold yellow"),
    "fail": ("✗ ", "bold red"),
    "fits": ("", "bold green"),
    "fits with changes": ("", "bold yellow"),
    "does not fit": ("", "bold red"),
    "running": ("", "bold yellow"),
    "starting": ("", "bold yellow"),
    "finished": ("", "bold green"),
    "paused": ("", "bold blue"),
    "failed": ("", "bold red"),
    "killed": ("", "bold red"),
}
"""The mark before each status, and its style."""


def render(document: Document) -> RenderableType:
    """Return a document for the console: its heading, then its content."""
    return Group(*_heading(document), *_lines(document.content), *([text(document.footer)] if document.footer else []))


def plain(content: RenderableType | Document, *, width: int = WIDTH) -> str:
    """Return what a terminal would show, without colors."""
    console = SafeConsole(file=StringIO(), width=width, color_system=None)
    with console.capture() as capture:
        console.print(render(content) if isinstance(content, Document) else content, crop=False)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def lines(document: Document) -> list[str]:
    """Return the lines of a document without colors, however long they are."""
    return plain(document, width=1_000_000).splitlines()


def text(content: Inline, style: str = "") -> Text:
    """Return an inline text in its colors."""
    result = Text(style=style)
    _append(result, content)
    return result


def status_style(word: str) -> str:
    """Return the style of a status."""
    return _STATUSES.get(word, ("", "bold"))[1]


def _append(result: Text, content: Inline) -> None:
    if isinstance(content, str):
        result.append(message_text(content))
    elif isinstance(content, Span):
        result.append(message_text(content.text), _TONES[content.tone])
    elif isinstance(content, Status):
        result.append(_STATUSES.get(content.word, ("", ""))[0] + one_line(content.word), status_style(content.word))
    elif isinstance(content, LineBreak):
        result.append("\n")
    elif isinstance(content, Swatch):
        result.append("■ ", _COLORS[content.color])
    else:
        for part in content:
            _append(result, part)


def _heading(document: Document) -> Iterator[Text]:
    if document.sentences is not None:
        yield from map(text, document.sentences)
        return
    heading = Text().append(one_line(document.title), "bold")
    if document.status:
        heading.append("  ").append_text(text(Status(document.status)))
    yield heading.append(f" · {one_line(document.subtitle)}" if document.subtitle else "")


def _lines(content: Iterable[Element]) -> Iterator[RenderableType]:
    """Yield what each element looks like; facts that follow each other are rows of one grid."""
    visible = (element for element in content if not (isinstance(element, Section) and element.is_extra))
    for is_fact, group in groupby(visible, key=lambda element: isinstance(element, Fact)):
        if is_fact:
            yield _facts([fact for fact in group if isinstance(fact, Fact)])
        else:
            for element in group:
                yield from _block(element)


def _facts(facts: Sequence[Fact]) -> Table:
    rows = _grid()
    for fact in facts:
        rows.add_row(one_line(fact.title), Group(*map(element_text, fact.content)))
    return rows


def _block(element: Element) -> Iterator[RenderableType]:
    """Yield an element that is as wide as the terminal."""
    if isinstance(element, Section):
        yield from (Text(), Text(one_line(element.title), style=_TONES[element.tone]))
        yield from _lines(element.content)
    elif isinstance(element, elements.Command):
        # The command is one line that can be pasted, even if the terminal wraps it.
        yield Text(f"  {one_line(element.text)}", style="bold", no_wrap=True, overflow="ignore")
    else:
        yield element_text(element)


@singledispatch
def element_text(element: object) -> RenderableType:
    """Return an element, or what is in the cell of a table."""
    raise TypeError(f"a terminal cannot show {type(element).__name__}")


@element_text.register(str)
@element_text.register(Span)
@element_text.register(Status)
@element_text.register(list)
@element_text.register(tuple)
def _inline(content: Inline) -> RenderableType:
    return text(content)


@element_text.register
def _document(document: Document) -> RenderableType:
    return render(document)


@element_text.register
def _section(section: Section) -> RenderableType:
    return Group(*(_lines(section.content) if not section.title else _block(section)))


@element_text.register
def _paragraph(paragraph: elements.Paragraph) -> RenderableType:
    line = text(paragraph.text, _TONES[paragraph.tone])
    if not paragraph.can_wrap:
        line.no_wrap, line.overflow = True, "ignore"
    return line


@element_text.register
def _command(command: elements.Command) -> RenderableType:
    return Text(one_line(command.text), overflow="fold")


@element_text.register
def _code(code: elements.Code) -> RenderableType:
    return Text(printable(code.text))


@element_text.register
def _items(items: elements.Items) -> RenderableType:
    lines = Text("\n").join(map(text, items.texts))
    # A path in a command stays complete, so that the command can be copied.
    lines.no_wrap, lines.overflow = (True, "ellipsis") if items.is_clipped else (False, "fold")
    return lines


@element_text.register
def _labels(labels: elements.Labels) -> RenderableType:
    pairs = (f"{one_line(name)} {one_line(value)}" if name else one_line(value) for name, value in labels.pairs)
    return Text(" · ".join(pairs) + (f"; {message_text(labels.remark)}" if labels.remark else ""))


@element_text.register
def _bar(bar: elements.Bar) -> RenderableType:
    eighths = max(1, round(min(1.0, sum(bar.shares)) * _BAR * 8))
    return Text("█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip(), style="cyan", overflow="ellipsis")


@element_text.register
def _sparkline(curve: elements.Sparkline) -> RenderableType:
    return Text(sparkline(curve.values) if curve.values else "", style="cyan")


@element_text.register
def _image(image: elements.Image) -> RenderableType:
    return Text(f"[{one_line(image.caption or image.description)}]", style="dim")


@element_text.register
def _row(row: elements.Row) -> RenderableType:
    return Group(*_lines(row.content))


class _Table:
    """A table with the columns for which the terminal is wide enough."""

    def __init__(self, table: elements.Table) -> None:
        self._table = table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield _table_of(self._table, options.max_width)


@element_text.register
def _table(table: elements.Table) -> RenderableType:
    if any(column.least_width for column in table.columns):
        return _Table(table)
    return _table_of(table, 0)  # whose own width is known, as in the cell of another table


def _table_of(table: elements.Table, width: int) -> Table:
    columns = [(index, column) for index, column in enumerate(table.columns) if column.least_width <= width]
    return (_with_head if table.has_head else _without_head)(table, columns)


def _with_head(table: elements.Table, columns: Sequence[tuple[int, Column]]) -> Table:
    """Return a table in which numbers begin where the name of their column does."""
    rows = Table(box=None, pad_edge=False, header_style="bold")
    for _, column in columns:
        is_cropped = not column.can_wrap or not column.name
        rows.add_column(text(column.name), no_wrap=not column.can_wrap, overflow="crop" if is_cropped else "ellipsis")
    for row in table.rows:
        cells = [element_text(row[index]) for index, _ in columns]
        for cell in cells:
            if isinstance(cell, Text):
                cell.overflow = None  # a narrow terminal crops bars
        rows.add_row(*cells)
    return rows


def _without_head(table: elements.Table, columns: Sequence[tuple[int, Column]]) -> Table:
    """Return a list of rows with their numbers right-aligned."""
    rows = _grid()
    for _, column in columns:
        rows.add_column(overflow="fold", justify="right" if column.is_numeric else "left")
    for row in table.rows:
        rows.add_row(*(element_text(row[index]) for index, _ in columns))
    return rows


@element_text.register
def _metrics(metrics: elements.Metrics) -> RenderableType:
    lines = []
    for part in metrics.parts:
        lines.append(Text(f"{one_line(part.name)}: {_summary(part.metrics)}"))
        lines += [Text(f"  {one_line(name)}: {_summary(values)}") for name, values in part.compared]
    return Group(*lines)


def _summary(metrics: Sequence[elements.Metric]) -> str:
    texts = []
    for metric in metrics:
        baseline = f" (most frequent class {metric.baseline})" if metric.baseline else ""
        texts.append(f"{one_line(metric.name)} {metric.text}{baseline}")
    return " · ".join(texts)


@element_text.register
def _breakdown(breakdown: elements.Breakdown) -> RenderableType:
    return _table(tables.table(breakdown))


class _LineChart:
    """The first curve as bars, and the single measurements of the others as dots over it."""

    def __init__(self, line_chart: elements.LineChart) -> None:
        self._chart = line_chart

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = max(1, min(options.max_width, _CHART_WIDTH) - _CHART_LABELS - 1)
        series = [curve for curve in self._chart.series if curve.points]
        if not series:
            return
        last = self._chart.end or max(curve.points[-1].x for curve in series) or 1.0
        legend = Text(f"{one_line(self._chart.y)[:_CHART_LABELS]:{_CHART_LABELS}} ", style="dim")
        for curve in series:
            mark, style = ("●", "red") if curve.has_dots else ("▅", "cyan")
            legend.append(
                f"{mark} {one_line(curve.name)} {curve.points[-1].y if curve.latest is None else curve.latest:.4g}   ",
                style,
            )
        for level in self._chart.levels:
            legend.append(f"╌ {one_line(level.text)}   ", "red")
        yield legend
        bars = next((curve for curve in series if not curve.has_dots), series[0])
        dots = {
            _column(point.x, last, columns): point.y for curve in series if curve.has_dots for point in curve.points
        }
        yield from chart(
            _bars(bars, last, columns),
            dots,
            height=_CHART_HEIGHT,
            labels=_CHART_LABELS,
            style="cyan",
            dot_style="red",
            levels=[level.y for level in self._chart.levels],
            is_from_zero=self._chart.is_from_zero,
        )
        end = f"{one_line(self._chart.x)} {last:,.0f}"
        yield Text(f"{' ' * _CHART_LABELS} 0{end:>{columns - 1}}", style="dim", no_wrap=True)


def _column(x: float, last: float, columns: int) -> int:
    return min(columns - 1, max(0, round(x / last * columns) - 1))


def _bars(curve: Series, last: float, columns: int) -> list[float]:
    """Return the height of a curve in each column, that of the point before it where there is none."""
    heights: dict[int, float] = {}
    for point in curve.points:
        column = _column(point.x, last, columns)
        heights[column] = max(point.y, heights.get(column, point.y)) if curve.keeps_peaks else point.y
    values, height = [], curve.points[0].y
    for column in range(max(heights) + 1):
        height = heights.get(column, height)
        values.append(height)
    return values


@element_text.register
def _line_chart(line_chart: elements.LineChart) -> RenderableType:
    return Group(_title(line_chart), _LineChart(line_chart))


@element_text.register
def _drawing(drawing: elements.Drawing) -> RenderableType:
    return Group(_title(drawing), _table(tables.table(drawing)))


def _title(drawing: elements.Drawing) -> RenderableType:
    return text([Span(drawing.title, "strong"), f"  {drawing.caption}" if drawing.caption else ""])


def _grid() -> Table:
    """Columns side by side, without lines."""
    return Table.grid(padding=(0, 2))
