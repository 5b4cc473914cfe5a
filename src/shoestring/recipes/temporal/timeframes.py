"""Coarser timeframes, aggregated from the bars by the calendar and used only after they have closed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd

MINUTE, HOUR, DAY = 60, 3600, 86400

PERIODS = {
    # name: (unit of the calendar, units per period, offset of a period from 1970-01-01 in units)
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
    # largest number of seconds between bars, middle timeframe, coarse timeframe
    (2 * MINUTE, "15 minutes", "1 hour"),
    (15 * MINUTE, "1 hour", "4 hours"),
    (1 * HOUR, "4 hours", "1 day"),
    (12 * HOUR, "1 day", "1 week"),
    (2 * DAY, "1 week", "1 month"),
    (7 * DAY, "1 month", "1 quarter"),
    (float("inf"), "1 quarter", "1 year"),
)


def choose_timeframes(bars: pd.DataFrame) -> tuple[str, str]:
    """Return the middle and the coarse timeframe for the median spacing of the bars."""
    spacing = bars.groupby("symbol", observed=True)["time"].diff().dt.total_seconds().median()
    # The median is NaN if no symbol has two bars; the first entry is selected then, and the bars are too few for it.
    return next((middle, coarse) for limit, middle, coarse in TIMEFRAMES if not spacing > limit)


def resample(bars: pd.DataFrame, period: str) -> tuple[pd.DataFrame, NDArray[np.int64]]:
    """Return one symbol's bars in the coarser `period`, and for each of `bars` the row of its coarser bar."""
    unit, count, start = PERIODS[period]
    numbers = (bars["time"].to_numpy().astype(f"datetime64[{unit}]").astype("int64") - start) // count
    first = np.flatnonzero(np.diff(numbers, prepend=numbers[0] - 1))
    last = np.append(first[1:], len(numbers)) - 1
    coarser = bars.iloc[last].assign(
        open=bars["open"].to_numpy()[first],
        high=np.maximum.reduceat(bars["high"].to_numpy(), first),
        low=np.minimum.reduceat(bars["low"].to_numpy(), first),
        volume=np.add.reduceat(bars["volume"].to_numpy(), first),
    )
    return coarser.reset_index(drop=True), np.repeat(np.arange(len(first)), last - first + 1)


def last_closed(coarser: pd.DataFrame, rows: NDArray[np.int64]) -> pd.DataFrame:
    """Return for each bar the last row of `coarser` that had closed when the bar's own period began.

    The bar's own row (`rows`) closes in the future, so the row before is used; NaN if there is none.
    """
    return coarser.shift(1).iloc[rows].reset_index(drop=True)
