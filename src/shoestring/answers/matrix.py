"""Confusion matrices from files."""

from shoestring.answers.document import Matrix
from shoestring.answers.values import lookup, words
from shoestring.base.reading import number

_MOST_CLASSES = 40
"""More are not drawn: their labels would be unreadable."""
_MAX_LABEL = 24


def read(content: object, *, title: str = "", caption: str = "") -> Matrix | None:
    """Return a confusion matrix {labels, counts}; None if it is not one, or has too many classes."""
    labels, counts = lookup(content, "labels"), _counts(lookup(content, "counts"))
    if not isinstance(labels, list) or not counts or len(counts) != len(labels) or len(labels) > _MOST_CLASSES:
        return None
    return Matrix(
        title=title,
        caption=caption,
        label="Confusion matrix",
        rows="true",
        columns="predicted",
        names=[words(str(label))[:_MAX_LABEL] for label in labels],
        counts=counts,
    )


def _counts(rows: object) -> list[list[float]]:
    """Return a square of numbers from 0; empty if `rows` are something else."""
    if not isinstance(rows, list) or not all(isinstance(row, list) and len(row) == len(rows) for row in rows):
        return []
    counts = [[number(value) for value in row] for row in rows]
    if any(value is None or value < 0 for row in counts for value in row):
        return []
    return [[value or 0.0 for value in row] for row in counts]
