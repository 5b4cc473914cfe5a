"""Elements as tables, where they are not drawn."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import singledispatch
from itertools import pairwise

from shoestring.answers.document import (
    Bar,
    BarChart,
    Breakdown,
    Cell,
    Column,
    Element,
    Histogram,
    Matrix,
    Metric,
    Metrics,
    Section,
    Status,
    Table,
    Timeline,
)
from shoestring.base.units import bytes_text, count_text, seconds_text

_UNKNOWN = "\N{EN DASH}"


@singledispatch
def table(drawing: object) -> Table:
    """Return a drawing as a table."""
    raise TypeError(f"{type(drawing).__name__} cannot be shown as a table")


@table.register
def _breakdown(breakdown: Breakdown) -> Table:
    largest = max((part.bytes for part in breakdown.parts), default=0) or 1
    rows = [(part.name, bytes_text(part.bytes), Bar([part.bytes / largest])) for part in breakdown.parts]
    return Table([Column(), Column(is_numeric=True), Column()], rows)


@table.register
def _bar_chart(bars: BarChart) -> Table:
    columns = [Column(), *(Column(name, is_numeric=True) for name, _, _ in bars.series)]
    rows = [
        [category, *(f"{values[place]:.0%}" for _, _, values in bars.series)]
        for place, category in enumerate(bars.categories)
    ]
    return Table(columns, rows)


@table.register
def _histogram(histogram: Histogram) -> Table:
    largest = max(histogram.counts, default=0) or 1
    rows = [
        (f"{low:.4g} to {high:.4g}", f"{count:,.0f}", Bar([count / largest]))
        for (low, high), count in zip(pairwise(histogram.edges), histogram.counts, strict=True)
    ]
    return Table([Column(), Column(is_numeric=True), Column()], rows)


@table.register
def _matrix(matrix: Matrix) -> Table:
    columns = [Column(f"{matrix.rows} → {matrix.columns}"), *(Column(name, is_numeric=True) for name in matrix.names)]
    rows = [
        [name, *(count_text(round(value)) for value in row)]
        for name, row in zip(matrix.names, matrix.counts, strict=True)
    ]
    return Table(columns, rows)


@table.register
def _timeline(timeline: Timeline) -> Table:
    rows = [
        (
            interval.name,
            datetime.fromtimestamp(interval.start, UTC).strftime("%Y-%m-%d %H:%M UTC"),
            seconds_text(interval.end - interval.start),
            Status(interval.status),
        )
        for interval in timeline.intervals
    ]
    return Table([Column(), Column(), Column(is_numeric=True), Column()], rows)


def metric_tables(metrics: Metrics) -> Iterator[Element]:
    """Yield metrics as a table with a row for each and a column for each part, and what was compared below it.

    The baselines are those of the last part.
    """
    parts = [{metric.name: metric for metric in part.metrics} for part in metrics.parts]
    names = list(dict.fromkeys(name for part in parts for name in part))
    if names:
        last = parts[-1]
        has_baseline = any(metric.baseline for metric in last.values())
        head = ["metric", *(part.name for part in metrics.parts)]
        head += [f"most frequent class ({metrics.parts[-1].name})"] if has_baseline else []
        rows: list[list[Cell]] = []
        for name in names:
            values: list[Cell] = [part[name].text if name in part else _UNKNOWN for part in parts]
            baseline = [(last[name].baseline if name in last else "") or _UNKNOWN] if has_baseline else []
            rows.append([name.replace("_", " "), *values, *baseline])
        yield Table([Column(name, is_numeric=index > 0) for index, name in enumerate(head)], rows)
    for part in metrics.parts:
        if part.compared:
            yield Section(f"Compared on {part.name} data", [_compared(part.compared)])


def _compared(compared: Sequence[tuple[str, Sequence[Metric]]]) -> Table:
    rows = [(title, {metric.name: metric.text for metric in metrics}) for title, metrics in compared]
    names = list(dict.fromkeys(name for _, values in rows for name in values))
    return Table(
        [Column(), *(Column(name.replace("_", " "), is_numeric=True) for name in names)],
        [[title.replace("_", " "), *(values.get(name, _UNKNOWN) for name in names)] for title, values in rows],
    )
