"""A curve in block characters."""

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter

from rich.text import Text

_BLOCKS = " ▁▂▃▄▅▆▇█"
_DOT = "●"
_LEVEL = "╌"
_MOST_FOR_LINEAR = 50
"""The ratio of the largest to the smallest value beyond which the scale is logarithmic, as on the page."""


def chart(
    values: Sequence[float],
    dots: Mapping[int, float],
    *,
    height: int,
    labels: int,
    style: str,
    dot_style: str,
    levels: Sequence[float] = (),
    is_from_zero: bool = False,
) -> list[Text]:
    """Return `height` lines that show `values`, one for each column, as bars from the smallest value up.

    `dots` are single values by column, drawn over the bars, and `levels` values with a horizontal line above them.
    `labels` is the width of the scale on the left, which is from zero, or logarithmic if the largest value is more than
    50 times the smallest.
    """
    every_value = [*values, *dots.values(), *levels, *([0.0] if is_from_zero else [])]
    low, high = min(every_value), max(every_value)
    is_logarithmic = low > 0 and high > _MOST_FOR_LINEAR * low
    transform = math.log if is_logarithmic else float
    bottom, span = transform(low), transform(high) - transform(low)

    def eighths(value: float) -> int:
        """The height of a value in eighths of a line, at least one."""
        share = (transform(value) - bottom) / span if span else 0.5
        return 1 + round(share * (8 * height - 1))

    heights = [eighths(value) for value in values]
    rows = {column: min(height - 1, (eighths(value) - 1) // 8) for column, value in dots.items()}
    level_rows = {min(height - 1, (eighths(value) - 1) // 8) for value in levels}
    lines = []
    for row in reversed(range(height)):
        line = Text(no_wrap=True)
        line.append(f"{_label(row, height, low, high, is_logarithmic):>{labels}} ", "dim")
        cells = [
            (_DOT, dot_style)
            if rows.get(column) == row
            else (_LEVEL, dot_style)
            if row in level_rows and bar <= 8 * row
            else (_BLOCKS[min(8, max(0, bar - 8 * row))], style)
            for column, bar in enumerate(heights)
        ]
        for cell_style, group in groupby(cells, key=itemgetter(1)):
            line.append("".join(character for character, _ in group), cell_style)
        lines.append(line)
    return lines


def sparkline(values: Sequence[float]) -> str:
    """Return one line of blocks, one for each value, from the smallest to the largest."""
    low, high = min(values), max(values)
    return "".join(_BLOCKS[1 + round(7 * ((value - low) / (high - low) if high > low else 0.5))] for value in values)


def _label(row: int, height: int, low: float, high: float, is_logarithmic: bool) -> str:
    """Label the ends and the middle of the scale."""
    if row not in (0, height // 2, height - 1):
        return ""
    share = row / max(1, height - 1)
    value = low * (high / low) ** share if is_logarithmic else low + share * (high - low)
    return f"{value:.3g}"
