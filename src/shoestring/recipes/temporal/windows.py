"""Samples: a sequence of bars and the class of what came after, as views of one table."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from shoestring.recipes.temporal.table import Table

CLASSES = ("down", "flat", "up")

Batch: TypeAlias = tuple[Tensor, Tensor]
"""Sequences (n, seq_len, 29) float32 and their classes (n,) int64."""


class Windows(Dataset[Batch]):
    """The samples of one part. No window is copied before it is asked for: all are read from one table of bars."""

    def __init__(self, features: Tensor, ends: Tensor, labels: Tensor, seq_len: int) -> None:
        """`features` (bars, 29); of each sample the row of its last bar and its class, (samples,) int64."""
        self.features, self.ends, self.labels = features, ends, labels
        self.offsets = torch.arange(1 - seq_len, 1, device=features.device)

    @property
    def nbytes(self) -> int:
        """Of the table and what finds the samples in it."""
        return self.features.nbytes + self.ends.nbytes + self.labels.nbytes

    def to(self, device: torch.device) -> "Windows":
        """The same samples from a table on `device`."""
        features, ends, labels = (one.to(device) for one in (self.features, self.ends, self.labels))
        return Windows(features, ends, labels, len(self.offsets))

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, index: int) -> Batch:
        """One sample: (seq_len, 29) and a class without dimension."""
        return self.features[self.ends[index] + self.offsets], self.labels[index]

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """A whole batch at once, for `collate` to pass on."""
        chosen = torch.as_tensor(indices, dtype=torch.int64, device=self.features.device)
        rows = self.ends[chosen, None] + self.offsets
        # A sixth of the time that indexing takes, where each bar lies in one piece
        return self.features.index_select(0, rows.flatten()).unflatten(0, rows.shape), self.labels[chosen]


def collate(samples: Batch | list[Batch]) -> Batch:
    """The batch that `Windows.__getitems__` gathered as it is, or one made of single samples."""
    if isinstance(samples, tuple):
        return samples
    inputs, labels = zip(*samples, strict=True)
    return torch.stack(inputs), torch.stack(labels)


def last_bars(table: Table, seq_len: int, horizon: int, first: int, stop: int) -> NDArray[np.int64]:
    """The last bars of the samples that lie in the moments from `first` to before `stop`, label and all.

    A sample is the `seq_len` bars that end there, and the bar `horizon` later that decides its class. All are of one
    symbol and one part, so that neither an input nor a label reaches from one part into another.
    """
    found = np.arange(seq_len - 1, len(table.close) - horizon)
    begin, decided = found - seq_len + 1, found + horizon
    one_symbol = table.symbol[begin] == table.symbol[decided]
    one_part = (table.moment[begin] >= first) & (table.moment[decided] < stop)
    return found[np.flatnonzero(one_symbol & one_part)]


def classes(close: NDArray[np.float64], ends: NDArray[np.int64], horizon: int, threshold: float) -> NDArray[np.int64]:
    """The class of each sample by the change of the close `horizon` bars on: beyond ±`threshold` is up or down."""
    change = close[ends + horizon] / close[ends] - 1
    return np.where(change > threshold, 2, np.where(change < -threshold, 0, 1)).astype(np.int64)
