"""Figures of a classification: the confusion matrix, and precision, recall and F1 of each class."""

from typing import TYPE_CHECKING

from shoestring.answers.renderers.markup import EMPTY, Markup, element
from shoestring.answers.renderers.page import svg
from shoestring.answers.values import lookup, words
from shoestring.base.reading import number
from shoestring.base.units import count_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_CLASSES = 40
"""More are not drawn: their labels would be unreadable."""
_MAX_LABEL = 24
_DARK_SHARE = 0.55
"""The share of a row from which its cell is so dark that its number is drawn in the color of the page."""
_WIDTH = 420.0


def figures(matrix: object) -> Markup:
    """Draw a confusion matrix {labels, counts}; empty if it is not one, or has too many classes."""
    labels, counts = lookup(matrix, "labels"), _counts(lookup(matrix, "counts"))
    if not isinstance(labels, list) or not counts or len(counts) != len(labels) or len(labels) > _MOST_CLASSES:
        return EMPTY
    names = [words(str(label))[:_MAX_LABEL] for label in labels]
    return element(
        "div",
        element(
            "figure",
            element("figcaption", element("b", "Confusion matrix"), element("span", "Shaded by the share of a row")),
            _confusion(names, counts),
        ),
        element(
            "figure",
            element("figcaption", element("b", "Classes"), element("span", "Precision, recall and F1")),
            _bars(names, counts),
        ),
        class_="figures",
    )


def _counts(rows: object) -> list[list[float]]:
    """Return a square of numbers from 0; empty if `rows` are something else."""
    if not isinstance(rows, list) or not all(isinstance(row, list) and len(row) == len(rows) for row in rows):
        return []
    counts = [[number(value) for value in row] for row in rows]
    if any(value is None or value < 0 for row in counts for value in row):
        return []
    return [[value or 0.0 for value in row] for row in counts]


def _confusion(names: list[str], counts: list[list[float]]) -> Markup:
    def paint(axes: "Axes") -> None:
        from matplotlib.patches import Rectangle

        for true, row in enumerate(counts):
            for predicted, value in enumerate(row):
                share = value / (sum(row) or 1)
                corner = (predicted - 0.5, true - 0.5)
                axes.add_patch(Rectangle(corner, 1, 1, facecolor=svg.BLUE, alpha=share, linewidth=0))
                color = svg.CARD if share > _DARK_SHARE else svg.INK if value else svg.MUTED
                axes.text(predicted, true, count_text(round(value)), ha="center", va="center", color=color, fontsize=8)
        positions = range(len(names))
        axes.set_xticks(positions, names, rotation=40, ha="right")
        axes.set_yticks(positions, names)
        axes.set(xlim=(-0.5, len(names) - 0.5), ylim=(len(names) - 0.5, -0.5), xlabel="predicted", ylabel="true")
        axes.grid(False)

    return svg.draw("Confusion matrix", paint, width=_WIDTH, height=110 + 22.0 * len(names))


def _bars(names: list[str], counts: list[list[float]]) -> Markup:
    columns = [sum(row[index] for row in counts) for index in range(len(counts))]
    correct = [counts[index][index] for index in range(len(counts))]
    series = {
        "precision": (svg.SKY, [_ratio(*pair) for pair in zip(correct, columns, strict=True)]),
        "recall": (svg.ORANGE, [_ratio(*pair) for pair in zip(correct, map(sum, counts), strict=True)]),
        "F1": (
            svg.BLUE,
            [_ratio(2 * hits, column + sum(row)) for hits, column, row in zip(correct, columns, counts, strict=True)],
        ),
    }

    def paint(axes: "Axes") -> None:
        for place, (name, (color, values)) in enumerate(series.items()):
            positions = [index + (place - 1) * 0.27 for index in range(len(names))]
            axes.barh(positions, values, height=0.24, color=color, label=name)
        axes.set_yticks(
            range(len(names)), [f"{name} ({sum(row):,.0f})" for name, row in zip(names, counts, strict=True)]
        )
        axes.set(xlim=(0, 1), ylim=(len(names) - 0.5, -0.5))
        axes.grid(True, axis="x")
        axes.grid(False, axis="y")
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3)

    return svg.draw("Precision, recall and F1 of each class", paint, width=_WIDTH, height=110 + 22.0 * len(names))


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
