"""All bars of all symbols as one table of features, and how it is standardised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from shoestring.recipes.temporal.features import features
from shoestring.recipes.temporal.timeframes import choose

if TYPE_CHECKING:
    import pandas as pd

CONSTANT = 1e-6
"""A feature that deviates less than this is constant but for rounding."""

CLIP = 10.0
"""Deviations from the mean at most; a crash is far out, not a hundred times as loud as everything else."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Bars with all their features, one symbol after the other, each ascending in time."""

    features: NDArray[np.float32]
    """(bars, 29), none of them NaN."""
    close: NDArray[np.float64]
    symbol: NDArray[np.int64]
    """The number of each bar's symbol."""
    moment: NDArray[np.int64]
    """The number of each bar's time among all times of the table: the same time, the same number in all symbols."""

    @property
    def moments(self) -> int:
        return int(self.moment.max(initial=-1)) + 1


def tabulate(bars: pd.DataFrame) -> Table:
    """The bars (as of `read_bars`) whose past reaches back far enough for every feature."""
    middle, coarse = choose(bars)
    rows, values = [], []
    for _, own in bars.groupby("symbol", observed=True):
        found = features(own, middle, coarse).to_numpy()
        warm = int(np.isnan(found).any(axis=1).sum())  # they all lie at the beginning
        rows.append(own.index.to_numpy()[warm:])
        values.append(found[warm:].astype(np.float32))
    kept = bars.iloc[np.concatenate(rows)]
    _, moment = np.unique(kept["time"].to_numpy(), return_inverse=True)
    return Table(
        features=np.concatenate(values),
        close=kept["close"].to_numpy(dtype=np.float64),
        symbol=kept["symbol"].cat.codes.to_numpy().astype(np.int64),
        moment=moment.astype(np.int64),
    )


def standardised(table: Table, before: int) -> NDArray[np.float32]:
    """The features with mean 0 and deviation 1 over the bars of the moments `before`: the training part.

    Nothing of later bars enters. A feature that is constant there (no volume in the file, say) keeps its scale.
    """
    seen = table.features[table.moment < before]
    mean, deviation = seen.mean(axis=0, dtype=np.float64), seen.std(axis=0, dtype=np.float64)
    deviation[deviation < CONSTANT] = 1.0
    scaled: NDArray[np.float32] = table.features - mean.astype(np.float32)
    scaled /= deviation.astype(np.float32)
    return np.clip(scaled, -CLIP, CLIP, out=scaled)
