"""The padded lengths of a run's updates, if the recipe knows the lengths of its samples."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from shoestring.recipe.contract import length_of
from shoestring.recipe.microbatches import Member, flattened
from shoestring.training.data.loading import Loader
from shoestring.training.data.order import DataOrder

_SECONDS = 1.0
"""The time for each of the two searches: the lengths of some data are slow to compute."""
_UPDATES = 200


class Lengths:
    """The padded lengths of updates in microbatches of `micro_batch` samples, or packed rows."""

    def __init__(self, recipe: object, data: Any, order: DataOrder, loader: Loader, micro_batch: int) -> None:
        self._order, self._loader, self._micro_batch, self._samples = order, loader, micro_batch, len(data)
        self._length = length_of(recipe, data)

    def of_update(self, number: int) -> float | None:
        """Return the padded length of all samples of an update; None if the recipe knows no lengths."""
        length = self._length
        if length is None:
            return None
        parts = self._loader.parts(number, self._micro_batch)
        return sum(len(part) * max(_filled(part, length)) for part in parts)

    def mean(self) -> float | None:
        """Return the mean padded length of updates of the first epoch, as many as can be computed in a second."""
        updates, end = self._order.updates_per_epoch, time.monotonic() + _SECONDS
        lengths = []
        for number in range(0, updates, -(-updates // _UPDATES)):
            if (length := self.of_update(number)) is None or time.monotonic() > end:
                break
            lengths.append(length)
        return sum(lengths) / len(lengths) if lengths else None

    def longest_update(self) -> int | None:
        """Return the first epoch's update with the longest sample; None if lengths are not known or all equal."""
        length, end = self._length, time.monotonic() + _SECONDS
        if length is None:
            return None
        lengths = []
        for index in range(self._samples):
            lengths.append(length(index))
            if time.monotonic() > end:
                return None
        if min(lengths) == max(lengths):
            return None
        longest = lengths.index(max(lengths))
        return next(
            (number for number in range(self._order.updates_per_epoch) if longest in self._order.indices(number)), None
        )


def _filled(members: Sequence[Member], length: Callable[[int], float]) -> list[float]:
    return [sum(map(length, flattened([member]))) for member in members]
