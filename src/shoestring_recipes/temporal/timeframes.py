"""Coarser timeframes, aggregated from the bars by the calendar or given as bars, and used only after their close."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd

MINUTE, HOUR, DAY = 60, 3600, 86400

PERIODS = {
    # name: (unit of the calendar, units per period, offset of a period from 1970-01-01 in units), in order of length
    "1 minute": ("s", MINUTE, 0),
    **{f"{count} minutes": ("s", count * MINUTE, 0) for count in (2, 3, 4, 5, 6, 10, 12, 15, 20, 30)},
    "1 hour": ("s", HOUR, 0),
    **{f"{count} hours": ("s", count * HOUR, 0) for count in (2, 3, 4, 6, 8, 12)},
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
    return timeframes_for(median_spacing(bars))


def median_spacing(bars: pd.DataFrame) -> float:
    """Return the median number of seconds between neighbouring bars of a symbol; NaN if no symbol has two."""
    gaps = bars.groupby("symbol", observed=True)["time"].diff().dt.total_seconds().dropna()
    return float(gaps.median()) if len(gaps) else float("nan")  # pandas 2 warns about the median of nothing


def timeframes_for(seconds: float) -> tuple[str, str]:
    """Return the middle and the coarse timeframe for bars that are so many seconds apart."""
    # Without two bars of a symbol the first entry is selected, and the bars are too few for it.
    return next((middle, coarse) for limit, middle, coarse in TIMEFRAMES if not seconds > limit)


def shortest_seconds(period: str) -> int:
    """Return the length of a period, of months and years that of the shortest."""
    unit, count, _ = PERIODS[period]
    return count * (28 * DAY if unit == "M" else 1)


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


def closes(opens: NDArray[np.datetime64], period: str) -> NDArray[np.datetime64]:
    """Return when the bars of a `period` close that open at `opens`, ascending.

    Months that do not begin at midnight of the first day, because their times were converted from another zone, are
    taken to have 31 days: they are then used late rather than before they have closed.
    """
    unit, count, _ = PERIODS[period]
    seconds = opens.astype("datetime64[s]")
    if unit == "s":
        return (seconds.astype("int64") + count).astype("datetime64[s]")
    months = seconds.astype("datetime64[M]")
    following = (months.astype("int64") + count).astype("datetime64[M]").astype("datetime64[s]")
    late = (seconds.astype("int64") + 31 * count * DAY).astype("datetime64[s]")
    return np.where(months.astype("datetime64[s]") == seconds, following, late)


def last_closed_at(
    coarser: pd.DataFrame, opens: NDArray[np.datetime64], period: str, times: NDArray[np.datetime64]
) -> pd.DataFrame:
    """Return for each of `times`, at which bars open, the last row of `coarser` that had closed by then, else NaN.

    The rows of `coarser` are those of bars of the `period` that open at `opens`, ascending. As with resampled bars, a
    bar that closes together with the coarser one does not know it yet.
    """
    rows = np.searchsorted(closes(opens, period), times.astype("datetime64[s]"), side="right") - 1
    return coarser.reset_index(drop=True).reindex(rows).reset_index(drop=True)
