"""A part of a dataset that stands for the whole: the same for the same seed, with each label's share of it."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from itertools import accumulate, pairwise
from typing import Any

from shoestring.errors import UsageError


def chosen(samples: int, wanted: float, *, seed: int, label: Callable[[int], Hashable] | None = None) -> list[int]:
    """The numbers of `wanted` of `samples`, in rising order: a share of at most 1, or else a count.

    A smaller choice is part of every larger one. Of each label there are as many as its share, to within one.

    Raises UsageError where that is none or more than there are.
    """
    count = round(wanted * samples) if wanted <= 1 else round(wanted)
    if not 0 < count <= samples or (wanted > 1 and count != wanted):
        raise UsageError(
            f"subset={wanted:g} of {samples} samples", hint="a share of more than 0 and at most 1, or a whole number"
        )
    import numpy as np

    # The stream of RandomState never changes; that of newer generators may from one NumPy to the next.
    order: list[int] = np.random.RandomState(seed & 0xFFFFFFFF).permutation(samples).tolist()
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for index in order:
        groups[label(index) if label else None].append(index)
    # Each label's samples stand at equal distances on a line from 0 to 1, and the first of all are taken.
    place = {index: (rank + 0.5) / len(members) for members in groups.values() for rank, index in enumerate(members)}
    return sorted(sorted(order, key=place.__getitem__)[:count])


class Subset:
    """The samples `indices`, in rising order, of a map-style dataset, which stays where it is."""

    def __init__(self, dataset: Any, indices: Sequence[int]) -> None:
        self.dataset, self.indices = dataset, indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[self.indices[index]]

    def __getattr__(self, name: str) -> Any:
        # Only a dataset that gives many samples at once, can move, or lies in shards makes a subset that does.
        if name == "__getitems__":
            many = self.dataset.__getitems__
            return lambda indices: many([self.indices[index] for index in indices])
        if name == "nbytes":
            return self.dataset.nbytes
        if name == "to":
            move = self.dataset.to
            return lambda device: Subset(move(device), self.indices)
        if name == "mix":
            return self.dataset.mix
        if name == "shards":
            ends = accumulate(self.dataset.shards, initial=0)
            return tuple(stop - start for start, stop in pairwise(bisect_left(self.indices, end) for end in ends))
        raise AttributeError(name)
