"""Whether the bars of two timeframes are of the same market and the same time zone, and cover the same time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from shoestring.base.units import count_text
from shoestring_recipes.temporal.timeframes import DAY, HOUR, MINUTE, closes

if TYPE_CHECKING:
    import pandas as pd

MOST_UNCOVERED = 0.1
"""Largest share of the bars that may lie in no bar of the longer timeframe."""

_LEAST_MATCHES = 5
"""With fewer bars of the longer timeframe that open together with a shorter one, nothing is concluded."""

_TOLERANCE = 0.01
"""Largest difference of two openings that are the same, in median ranges of the longer bars."""

_OFFSETS = [sign * count * 15 * MINUTE for count in range(1, 14 * HOUR // (15 * MINUTE) + 1) for sign in (1, -1)]
"""Differences between time zones in seconds, the smallest first."""


def find_disagreements(
    name: str, base: str, bars: pd.DataFrame, longer: pd.DataFrame, period: str
) -> Iterator[tuple[bool, str]]:
    """Yield what is wrong with the bars `longer` of a `period`, beside the `bars` of a shorter one, both of one symbol.

    Each is a pair: whether they cannot be used together, and a description with their names, `name` (EURUSD H4) and
    `base` (M15). Both frames ascend in time.
    """
    times, opens = (frame["time"].to_numpy().astype("datetime64[s]") for frame in (bars, longer))
    last = np.searchsorted(opens, times, side="right") - 1
    after_first = last >= 0
    is_uncovered = after_first & (times >= closes(opens, period)[last])
    uncovered, total, early = int(is_uncovered.sum()), int(after_first.sum()), int((~after_first).sum())
    if uncovered == total:
        yield True, f"{name} and {base} have no time in common: {_span(longer)}, and {_span(bars)}"
        return
    offset = _find_offset(bars, longer)
    if offset is None:
        text = f"{name} and {base}: most bars that begin together have other openings, perhaps of another source"
        yield False, text
    elif offset:
        order = "before" if offset > 0 else "after"
        text = f"{name} has its prices {abs(offset) / HOUR:g} hours {order} {base}: the times are of different zones"
        yield True, text
    text = f"{name}: {count_text(uncovered)} of {count_text(total)} bars of {base} lie in none of its bars"
    if uncovered > MOST_UNCOVERED * total:
        yield True, f"{text} ({_span(longer)})"
    elif uncovered:
        yield False, f"{text}; they see the bar that had closed before"
    if early:
        yield False, f"{name}: {count_text(early)} bars of {base} are older than its first bar and are not used"


def find_gaps(name: str, bars: pd.DataFrame, seconds: float) -> Iterator[str]:
    """Yield a note if bars of one symbol that are `seconds` long are far apart: more than ten of them, and a week."""
    times = bars["time"].to_numpy().astype("datetime64[s]")
    gaps = np.diff(times).astype("int64")
    count = int((gaps > max(7 * DAY, 10 * seconds)).sum())
    if count:
        longest = int(gaps.argmax())
        yield (
            f"{name}: {count_text(count)} {'gap' if count == 1 else 'gaps'} of more than a week, the longest from "
            f"{times[longest].item():%Y-%m-%d} to {times[longest + 1].item():%Y-%m-%d}; the bars around a gap are "
            "neighbours"
        )


def _find_offset(bars: pd.DataFrame, longer: pd.DataFrame) -> int | None:
    """Return how many seconds later than a longer bar the shorter one with the same opening has its time; None if no
    offset makes most of them equal.
    """
    shares = {0: _equal_share(bars, longer, 0)}
    if shares[0] is None or shares[0] < 0.5:
        shares |= {offset: _equal_share(bars, longer, offset) for offset in _OFFSETS}
    best = max(shares, key=lambda offset: shares[offset] or 0.0)
    if (shares[best] or 0.0) >= 0.5:
        return best
    return 0 if shares[0] is None else None


def _equal_share(bars: pd.DataFrame, longer: pd.DataFrame, offset: int) -> float | None:
    """Return the share of longer bars whose opening is that of the shorter bar `offset` seconds later; None for few."""
    times, opens = (frame["time"].to_numpy().astype("datetime64[s]").astype("int64") for frame in (bars, longer))
    rows = np.searchsorted(times, opens + offset).clip(max=len(times) - 1)
    matches = np.flatnonzero(times[rows] == opens + offset)
    if len(matches) < _LEAST_MATCHES:
        return None
    tolerance = _TOLERANCE * float((longer["high"] - longer["low"]).median())
    differences = bars["open"].to_numpy()[rows[matches]] - longer["open"].to_numpy()[matches]
    return float((np.abs(differences) <= tolerance).mean())


def _span(bars: pd.DataFrame) -> str:
    return f"{bars['time'].iloc[0]:%Y-%m-%d %H:%M} to {bars['time'].iloc[-1]:%Y-%m-%d %H:%M}"
