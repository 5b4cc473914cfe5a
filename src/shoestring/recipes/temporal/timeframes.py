"""Coarser timeframes, built from the bars themselves by the calendar and seen only once they have closed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd

MINUTE, HOUR, DAY = 60, 3600, 86400

PERIODS = {
    # name: (unit of the calendar, how many, how many after 1970-01-01 one begins)
    "15 minutes": ("s", 15 * MINUTE, 0),
    "1 hour": ("s", HOUR, 0),
    "4 hours": ("s", 4 * HOUR, 0),
    "1 day": ("s", DAY, 0),
    "1 week": ("s", 7 * DAY, 4 * DAY),  # 1970-01-05 was a Monday
    "1 month": ("M", 1, 0),
    "1 quarter": ("M", 3, 0),
    "1 year": ("M", 12, 0),
}

TIMEFRAMES = (
    # seconds between bars up to which it holds, the middle timeframe, the coarse one
    (2 * MINUTE, "15 minutes", "1 hour"),
    (15 * MINUTE, "1 hour", "4 hours"),
    (1 * HOUR, "4 hours", "1 day"),
    (12 * HOUR, "1 day", "1 week"),
    (2 * DAY, "1 week", "1 month"),
    (7 * DAY, "1 month", "1 quarter"),
    (float("inf"), "1 quarter", "1 year"),
)


def choose(bars: pd.DataFrame) -> tuple[str, str]:
    """The middle and the coarse timeframe for bars as far apart as these usually are."""
    spacing = bars.groupby("symbol", observed=True)["time"].diff().dt.total_seconds().median()
    # NaN, where no symbol has two bars, is no smaller than anything: the coarsest, and too few bars for it.
    return next((middle, coarse) for limit, middle, coarse in TIMEFRAMES if not spacing > limit)


def coarser(bars: pd.DataFrame, period: str) -> tuple[pd.DataFrame, NDArray[np.int64]]:
    """One symbol's bars in the coarser `period`, and for each of `bars` the row of the one it belongs to."""
    unit, count, start = PERIODS[period]
    numbers = (bars["time"].to_numpy().astype(f"datetime64[{unit}]").astype("int64") - start) // count
    first = np.flatnonzero(np.diff(numbers, prepend=numbers[0] - 1))
    last = np.append(first[1:], len(numbers)) - 1
    found = bars.iloc[last].assign(
        open=bars["open"].to_numpy()[first],
        high=np.maximum.reduceat(bars["high"].to_numpy(), first),
        low=np.minimum.reduceat(bars["low"].to_numpy(), first),
        volume=np.add.reduceat(bars["volume"].to_numpy(), first),
    )
    return found.reset_index(drop=True), np.repeat(np.arange(len(first)), last - first + 1)


def closed(coarser: pd.DataFrame, rows: NDArray[np.int64]) -> pd.DataFrame:
    """What each bar may know of the rows of `coarser`: the last one that had closed when its own period began.

    Its own row (`rows`) closes in the future, so it sees the one before; NaN where there is none.
    """
    return coarser.shift(1).iloc[rows].reset_index(drop=True)
