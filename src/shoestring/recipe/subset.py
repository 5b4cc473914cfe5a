"""A stratified subset of a dataset, which is the same for the same seed and preserves each label's share."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from itertools import accumulate, pairwise
from typing import Any

from shoestring.base.errors import UsageError


def choose_subset(samples: int, size: float, *, seed: int, label: Callable[[int], Hashable] | None = None) -> list[int]:
    """Choose the indices of a subset of `samples`, in rising order; `size` is a share of at most 1, or a count.

    A smaller subset is part of every larger one. Each label's count matches its share to within one.

    Raises UsageError if the subset is empty or larger than `samples`.
    """
    count = require_subset(samples, size)
    import numpy as np

    # The stream of RandomState never changes; that of newer generators may change between versions of NumPy.
    order: list[int] = np.random.RandomState(seed & 0xFFFFFFFF).permutation(samples).tolist()
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for index in order:
        groups[label(index) if label else None].append(index)
    # Each label's samples have equally spaced positions between 0 and 1; the subset has the lowest positions.
    position = {index: (rank + 0.5) / len(members) for members in groups.values() for rank, index in enumerate(members)}
    return sorted(sorted(order, key=position.__getitem__)[:count])


def require_subset(samples: int, size: float) -> int:
    """Return the number of samples in a subset. Raises UsageError if it is empty or larger than `samples`."""
    count = subset_count(samples, size)
    if not 0 < count <= samples or (size > 1 and count != size):
        raise UsageError(
            f"subset={size:.12g} of {samples} samples is not possible",
            hint="use a share of more than 0 and at most 1, or a whole number of at most all samples; "
            "rows=N plans N rows of data that are not here",
        )
    return count


def subset_count(samples: int, size: float) -> int:
    """Return the number of samples in a subset; `size` is a share of at most 1, or a count."""
    return round(size * samples) if size <= 1 else round(size)


class Subset:
    """A view of the samples `indices`, in rising order, of a map-style dataset."""

    replaces = 0
    """The number of samples of a part of `data()` in whose place it is."""

    def __init__(self, dataset: Any, indices: Sequence[int]) -> None:
        self.dataset, self.indices = dataset, indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[self.indices[index]]

    def __getattr__(self, name: str) -> Any:
        # A subset has these attributes only if its dataset has them.
        if name == "__getitems__":
            fetch = self.dataset.__getitems__
            return lambda indices: fetch([self.indices[index] for index in indices])
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
