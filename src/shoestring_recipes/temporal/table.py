"""One table with the features of all bars of all symbols."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from shoestring_recipes.temporal.features import FEATURES, compute_features
from shoestring_recipes.temporal.timeframes import choose_timeframes

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True)
class Table:
    """Bars with all their features, grouped by symbol, each symbol ascending in time."""

    features: NDArray[np.float32]
    """(bars, 29), without NaN."""
    close: NDArray[np.float64]
    symbol: NDArray[np.int64]
    """Index of each bar's symbol."""
    moment: NDArray[np.int64]
    """Index of each bar's time among all times of the table; equal times have equal indices in all symbols."""
    row: NDArray[np.int64]
    """Index of each bar among the bars of the table, including those without features at the beginning."""
    position: NDArray[np.int64]
    """Position of each bar in its file, from 0."""

    @property
    def moments(self) -> int:
        """Number of different times in the table."""
        return int(self.moment.max(initial=-1)) + 1


def tabulate(
    bars: pd.DataFrame,
    timeframes: tuple[str, str] | None = None,
    coarser_bars: Mapping[str, Mapping[str, pd.DataFrame]] | None = None,
) -> Table:
    """Return the features of `bars` (see `read_bars`), without bars whose history is too short for a feature.

    `timeframes` are the middle and the coarse one; by default those for the spacing of the bars. `coarser_bars` has
    bars of them, by symbol and period, where they are not to be aggregated from `bars`.
    """
    middle, coarse = timeframes or choose_timeframes(bars)
    position = bars.index.to_numpy(dtype=np.int64)
    bars = bars.reset_index(drop=True)
    rows = [np.empty(0, np.int64)]
    values = [np.empty((0, len(FEATURES)), np.float32)]
    for symbol, symbol_bars in bars.groupby("symbol", observed=True):
        features = compute_features(symbol_bars, middle, coarse, (coarser_bars or {}).get(str(symbol))).to_numpy()
        warm_up = int(np.isnan(features).any(axis=1).sum())  # all at the beginning
        rows.append(symbol_bars.index.to_numpy()[warm_up:])
        values.append(features[warm_up:].astype(np.float32))
    row = np.concatenate(rows)
    remaining = bars.iloc[row]
    _, moment = np.unique(remaining["time"].to_numpy(), return_inverse=True)
    return Table(
        features=np.concatenate(values),
        close=remaining["close"].to_numpy(dtype=np.float64),
        symbol=remaining["symbol"].cat.codes.to_numpy().astype(np.int64),
        moment=moment.astype(np.int64),
        row=row,
        position=position[row],
    )
