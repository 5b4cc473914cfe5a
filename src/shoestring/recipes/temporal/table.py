"""One table with the features of all bars of all symbols, and its standardisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from shoestring.recipes.temporal.features import compute_features
from shoestring.recipes.temporal.timeframes import choose_timeframes

if TYPE_CHECKING:
    import pandas as pd

CONSTANT = 1e-6
"""Standard deviation below which a feature is constant except for rounding."""

CLIP = 10.0
"""Largest absolute standardised value, so that a crash does not dominate all other inputs."""


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

    time: NDArray[np.datetime64] | None = None
    """Time of each bar, for people."""

    @property
    def moments(self) -> int:
        """Number of different times in the table."""
        return int(self.moment.max(initial=-1)) + 1


def tabulate(bars: pd.DataFrame) -> Table:
    """Return the features of `bars` (see `read_bars`), without bars whose history is too short for a feature."""
    middle, coarse = choose_timeframes(bars)
    rows, values = [], []
    for _, symbol_bars in bars.groupby("symbol", observed=True):
        features = compute_features(symbol_bars, middle, coarse).to_numpy()
        warm_up = int(np.isnan(features).any(axis=1).sum())  # all at the beginning
        rows.append(symbol_bars.index.to_numpy()[warm_up:])
        values.append(features[warm_up:].astype(np.float32))
    remaining = bars.iloc[np.concatenate(rows)]
    _, moment = np.unique(remaining["time"].to_numpy(), return_inverse=True)
    return Table(
        features=np.concatenate(values),
        close=remaining["close"].to_numpy(dtype=np.float64),
        symbol=remaining["symbol"].cat.codes.to_numpy().astype(np.int64),
        moment=moment.astype(np.int64),
        time=remaining["time"].to_numpy(),
    )


def standardise(table: Table, before: int) -> NDArray[np.float32]:
    """Return the features with mean 0 and deviation 1 over the moments below `before`, which are the training part.

    Later bars do not influence mean and deviation. A feature that is constant in the training part (for example without
    volume in the file) is only centered.
    """
    training = table.features[table.moment < before]
    mean, deviation = training.mean(axis=0, dtype=np.float64), training.std(axis=0, dtype=np.float64)
    deviation[deviation < CONSTANT] = 1.0
    scaled: NDArray[np.float32] = table.features - mean.astype(np.float32)
    scaled /= deviation.astype(np.float32)
    return np.clip(scaled, -CLIP, CLIP, out=scaled)
