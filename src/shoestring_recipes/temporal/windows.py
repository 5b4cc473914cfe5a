"""Samples as windows into one table: a sequence of bars and the class of the following price change."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from shoestring_recipes.temporal.table import Table

CLASSES = ("down", "flat", "up")

Batch: TypeAlias = tuple[Tensor, Tensor]
"""Sequences (n, seq_len, 29) float32 and their classes (n,) int64."""
Samples: TypeAlias = tuple[Tensor, ...]
"""A batch or a sample; one to predict has the sequence alone."""


class Windows(Dataset[Batch]):
    """The samples of one part, gathered on access from one table of bars."""

    describe_bar: Callable[[int], dict[str, str]] = staticmethod(lambda _: {})
    """Returns the time and the symbol of a row of the table."""

    def __init__(
        self,
        features: Tensor,
        ends: Tensor,
        labels: Tensor,
        seq_len: int,
        positions: NDArray[np.int64] | None = None,
    ) -> None:
        """`features` is (bars, 29); `ends` and `labels` have the row of each sample's last bar and its class, int64.

        `positions` has the position of each of the bars in its file.
        """
        self.features, self.ends, self.labels, self.positions = features, ends, labels, positions
        self.offsets = torch.arange(1 - seq_len, 1, device=features.device)

    @property
    def nbytes(self) -> int:
        """Size of the table, the ends and the labels in bytes."""
        return self.features.nbytes + self.ends.nbytes + self.labels.nbytes

    def to(self, device: torch.device) -> "Windows":
        """Return the same samples from a table on `device`."""
        features, ends, labels = (tensor.to(device) for tensor in (self.features, self.ends, self.labels))
        return Windows(features, ends, labels, len(self.offsets), self.positions)

    def position(self, index: int) -> int:
        """Return the position in the file of the last bar of a sample; its row in the table if there is no file."""
        end = int(self.ends[index])
        return end if self.positions is None else int(self.positions[end])

    def describe(self, index: int) -> dict[str, str]:
        """Return the time and the symbol of the last bar of a sample, and its class."""
        return {**self.describe_bar(int(self.ends[index])), "class": CLASSES[int(self.labels[index])]}

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, index: int) -> Batch:
        """Return one sample: features (seq_len, 29) and a class ()."""
        return self.features[self.ends[index] + self.offsets], self.labels[index]

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """Return a whole batch at once; `collate` passes it on unchanged."""
        samples = torch.as_tensor(indices, dtype=torch.int64, device=self.features.device)
        rows = self.ends[samples, None] + self.offsets
        # If each bar is contiguous, index_select takes a sixth of the time of indexing.
        return self.features.index_select(0, rows.flatten()).unflatten(0, rows.shape), self.labels[samples]


def collate(samples: Samples | Sequence[Samples]) -> Samples:
    """Return the batch of `Windows.__getitems__` unchanged, or stack single samples, which may have no class."""
    if isinstance(samples, tuple):
        return samples
    return tuple(map(torch.stack, zip(*samples, strict=True)))


def last_bars(table: Table, seq_len: int, horizon: int, first: int, stop: int) -> NDArray[np.int64]:
    """Return the last bars of all samples that lie within the moments from `first` up to, not including, `stop`.

    A sample consists of the `seq_len` bars up to its last bar, and of the bar `horizon` later, which determines its
    class. All of them belong to one symbol and one part, so neither inputs nor labels cross the border of a part.
    """
    ends = np.arange(seq_len - 1, len(table.close) - horizon)
    starts, label_bars = ends - seq_len + 1, ends + horizon
    same_symbol = table.symbol[starts] == table.symbol[label_bars]
    same_part = (table.moment[starts] >= first) & (table.moment[label_bars] < stop)
    return ends[np.flatnonzero(same_symbol & same_part)]


def classify(close: NDArray[np.float64], ends: NDArray[np.int64], horizon: int, threshold: float) -> NDArray[np.int64]:
    """Return the class of each sample: up or down if the close changes by more than `threshold` in `horizon` bars."""
    change = close[ends + horizon] / close[ends] - 1
    return np.where(change > threshold, 2, np.where(change < -threshold, 0, 1)).astype(np.int64)
