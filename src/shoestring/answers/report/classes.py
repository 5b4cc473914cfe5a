"""Figures of a classification: the confusion matrix, and precision, recall and F1 of each class."""

from collections.abc import Iterator, Sequence

from shoestring.answers import matrix
from shoestring.answers.document import BarChart, Element, Row


def figures(content: object) -> Iterator[Element]:
    """Yield a confusion matrix {labels, counts}; nothing if it is not one, or has too many classes."""
    confusion = matrix.read(content, title="Confusion matrix", caption="Shaded by the share of a row")
    if confusion:
        yield Row([confusion, _classes(confusion.names, confusion.counts)])


def _classes(names: Sequence[str], counts: Sequence[Sequence[float]]) -> BarChart:
    columns = [sum(row[index] for row in counts) for index in range(len(counts))]
    rows = [sum(row) for row in counts]
    correct = [counts[index][index] for index in range(len(counts))]
    return BarChart(
        title="Classes",
        caption="Precision, recall and F1",
        label="Precision, recall and F1 of each class",
        categories=[f"{name} ({total:,.0f})" for name, total in zip(names, rows, strict=True)],
        series=[
            ("precision", "sky", list(map(_ratio, correct, columns))),
            ("recall", "orange", list(map(_ratio, correct, rows))),
            (
                "F1",
                "blue",
                [_ratio(2 * hits, sum(totals)) for hits, *totals in zip(correct, columns, rows, strict=True)],
            ),
        ],
    )


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
