"""A curve that grows with a run, in 24 bytes for each value: a long run has hundreds of thousands."""

from array import array

import numpy as np


class Curve:
    """Values over the updates of a run, each with a weight."""

    def __init__(self) -> None:
        self._updates, self._values, self._weights = array("d"), array("d"), array("d")

    def __len__(self) -> int:
        return len(self._updates)

    def add(self, update: float, value: float, weight: float = 1.0) -> None:
        """Add a value; updates do not decrease between two calls of `cut`."""
        self._updates.append(update)
        self._values.append(value)
        self._weights.append(weight)

    def cut(self, update: float) -> None:
        """Remove the values after `update`, whose work is repeated."""
        while self._updates and self._updates[-1] > update:
            for column in (self._updates, self._values, self._weights):
                column.pop()

    def last(self) -> float | None:
        return self._values[-1] if self._values else None

    def columns(self, count: int) -> list[float]:
        """Return the weighted means of `count` equally wide ranges of updates, from 0 to the last one.

        A range without a value has that of the range before it, or of the first one. Without values there are none.
        """
        if not self._updates:
            return []
        updates, values = np.array(self._updates), np.array(self._values)
        weights = np.maximum(np.array(self._weights), 1e-9)
        bins = np.clip(np.ceil(updates * (count / max(updates[-1], 1.0))).astype(int) - 1, 0, count - 1)
        totals = np.bincount(bins, weights, count)
        sums = np.bincount(bins, weights * values, count)
        (filled,) = np.nonzero(totals)
        # The last range with a value at or before each range.
        sources = filled[np.maximum(np.searchsorted(filled, np.arange(count), side="right") - 1, 0)]
        return [float(mean) for mean in sums[sources] / totals[sources]]
