"""The order of samples: which of them make up an update is a pure function of (seed, epoch, effective batch).

It does not depend on the microbatch, workers, number of GPUs or interruptions, so the update number alone is the
position in the data. That holds for data in shards as well: their order is a function of the counts alone, as in
MosaicML's StreamingDataset.
"""

import hashlib
from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any, Self

import torch
from torch import Tensor

from shoestring.recipe.contract import updates_per_epoch
from shoestring.training.data.seeding import derive


@dataclass(frozen=True, kw_only=True)
class DataOrder:
    """Every sample once per epoch, shuffled each epoch, and split into `updates_per_epoch` updates."""

    samples: int
    """The number of training samples."""
    effective_batch: int
    """The number of samples of an update; the last one of an epoch has also those that are left over."""
    seed: int
    """Determines the order of each epoch."""
    shards: tuple[int, ...] = ()
    """The number of samples of each shard, for data that is only cheap to read shard by shard (`shards.py`)."""
    mix: int = 1
    """The number of shards whose samples are shuffled together. The shards themselves are shuffled each epoch."""

    @classmethod
    def of(cls, dataset: Any, *, effective_batch: int, seed: int) -> Self:
        """Return the order for a dataset that has a length, with its `shards` and `mix` if it has them."""
        shards, mix = getattr(dataset, "shards", ()), getattr(dataset, "mix", 1)
        return cls(samples=len(dataset), effective_batch=effective_batch, seed=seed, shards=tuple(shards), mix=mix)

    @property
    def updates_per_epoch(self) -> int:
        """The number of updates of an epoch."""
        return updates_per_epoch(self.samples, self.effective_batch)

    @property
    def key(self) -> str:
        """A description of what determines the order besides seed and effective batch."""
        if not self.shards:
            return f"{self.samples} samples"
        counts = hashlib.sha256(repr(self.shards).encode()).hexdigest()[:16]
        return f"{self.samples} samples in {len(self.shards)} shards ({counts}), {self.mix} mixed"

    def place(self, update: int) -> tuple[int, int]:
        """Return (epoch, number of the update in the epoch), both from 0."""
        return divmod(update, self.updates_per_epoch)

    def indices(self, update: int) -> list[int]:
        """Return the samples of update number `update` (from 0, over all epochs), in their order."""
        epoch, number = self.place(update)
        start = number * self.effective_batch
        stop = self.samples if number == self.updates_per_epoch - 1 else start + self.effective_batch
        if self.shards:
            return _sharded_indices(self.shards, self.mix, self.seed, epoch, start, stop)
        return _permutation(self.samples, self.seed, epoch)[start:stop].tolist()


# A permutation of a large data set takes a while and is needed in every update; prefetching needs the next epoch's
# while this one's is still in use. It is a tensor, since 100 million samples take 4 GB as a list.
@lru_cache(maxsize=2)
def _permutation(samples: int, seed: int, epoch: int) -> Tensor:
    """Return the samples in the order of an epoch, (samples,) int64."""
    return torch.randperm(samples, generator=torch.Generator().manual_seed(derive(seed, "order", epoch)))


def _sharded_indices(shards: tuple[int, ...], mix: int, seed: int, epoch: int, start: int, stop: int) -> list[int]:
    """Return the samples at the positions `start` to `stop` of an epoch; only the groups with them are shuffled."""
    groups, ends = _groups(shards, mix, seed, epoch)
    indices: list[int] = []
    for number in range(bisect_right(ends, start), len(groups)):
        first = ends[number - 1] if number else 0
        if first >= stop:
            break
        indices += _shuffled_group(shards, groups[number], seed, epoch)[max(0, start - first) : stop - first].tolist()
    return indices


@lru_cache(maxsize=2)
def _groups(shards: tuple[int, ...], mix: int, seed: int, epoch: int) -> tuple[list[tuple[int, ...]], list[int]]:
    """Return an epoch's shards in groups of `mix`, and the number of samples up to the end of each group."""
    order = _permutation(len(shards), seed, epoch).tolist()
    groups = [tuple(order[start : start + mix]) for start in range(0, len(order), mix)]
    return groups, list(accumulate(sum(shards[number] for number in group) for group in groups))


# An update may span two groups, and prefetching uses the next two.
@lru_cache(maxsize=4)
def _shuffled_group(shards: tuple[int, ...], members: tuple[int, ...], seed: int, epoch: int) -> Tensor:
    """Return the samples of the shards `members`, shuffled together, (samples,) int64."""
    firsts = list(accumulate(shards, initial=0))
    samples = torch.cat([torch.arange(firsts[number], firsts[number + 1]) for number in members])
    generator = torch.Generator().manual_seed(derive(seed, "order", epoch, "shards", *members))
    return samples[torch.randperm(len(samples), generator=generator)]
