"""Which samples make up which update: a pure function of (seed, epoch, effective batch).

Microbatch, workers, number of GPUs and interruptions do not enter, so the update number alone is the data position.
That holds for data in shards as well: their order follows from the counts alone, as in MosaicML's StreamingDataset.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any, Self

import torch
from torch import Tensor

from shoestring.data.seeding import derive
from shoestring.recipe.contract import updates_per_epoch


@dataclass(frozen=True, kw_only=True)
class DataOrder:
    """Every sample once an epoch, shuffled anew each epoch, dealt into updates as `updates_per_epoch` says."""

    samples: int
    effective_batch: int
    seed: int
    shards: tuple[int, ...] = ()
    """How many samples each shard has, where they are cheap to read only shard by shard (`shards.py`)."""
    mix: int = 1
    """Shards whose samples are shuffled together. The shards themselves are shuffled anew each epoch."""

    @classmethod
    def of(cls, dataset: Any, *, effective_batch: int, seed: int) -> Self:
        """The order for a dataset: by its `shards` and `mix` where it has them."""
        shards, mix = getattr(dataset, "shards", ()), getattr(dataset, "mix", 1)
        return cls(samples=len(dataset), effective_batch=effective_batch, seed=seed, shards=tuple(shards), mix=mix)

    @property
    def updates_per_epoch(self) -> int:
        return updates_per_epoch(self.samples, self.effective_batch)

    @property
    def key(self) -> str:
        """What it follows from besides seed and effective batch, in words: other data have another order."""
        if not self.shards:
            return f"{self.samples} samples"
        counts = hashlib.sha256(repr(self.shards).encode()).hexdigest()[:16]
        return f"{self.samples} samples in {len(self.shards)} shards ({counts}), {self.mix} mixed"

    def place(self, update: int) -> tuple[int, int]:
        """(epoch, number of the update in it), both from 0."""
        return divmod(update, self.updates_per_epoch)

    def indices(self, update: int) -> list[int]:
        """The samples of update number `update` (from 0, over all epochs), in their order."""
        epoch, number = self.place(update)
        start = number * self.effective_batch
        stop = self.samples if number == self.updates_per_epoch - 1 else start + self.effective_batch
        if self.shards:
            return _from_shards(self.shards, self.mix, self.seed, epoch, start, stop)
        return _permutation(self.samples, self.seed, epoch)[start:stop].tolist()


# A permutation of a large data set takes a while and an epoch asks for it once an update; who fetches ahead asks for
# the next epoch's while this one's is still in use. A tensor, for 100 million samples take 4 GB as a list.
@lru_cache(maxsize=2)
def _permutation(samples: int, seed: int, epoch: int) -> Tensor:
    """The samples in the order of an epoch, (samples,) int64."""
    return torch.randperm(samples, generator=torch.Generator().manual_seed(derive(seed, "order", epoch)))


def _from_shards(shards: tuple[int, ...], mix: int, seed: int, epoch: int, start: int, stop: int) -> list[int]:
    """The samples at the places `start` to `stop` of an epoch. Only the groups they lie in are shuffled for it."""
    groups, ends = _groups(shards, mix, seed, epoch)
    found: list[int] = []
    for number in range(bisect_right(ends, start), len(groups)):
        first = ends[number - 1] if number else 0
        if first >= stop:
            break
        found += _group(shards, groups[number], seed, epoch)[max(0, start - first) : stop - first].tolist()
    return found


@lru_cache(maxsize=2)
def _groups(shards: tuple[int, ...], mix: int, seed: int, epoch: int) -> tuple[list[tuple[int, ...]], list[int]]:
    """An epoch's shards in their order, `mix` at a time, and how many samples there are up to the end of each group."""
    order = _permutation(len(shards), seed, epoch).tolist()
    groups = [tuple(order[at : at + mix]) for at in range(0, len(order), mix)]
    return groups, list(accumulate(sum(shards[number] for number in group) for group in groups))


# An update may lie in two groups, and who fetches ahead is in the next two.
@lru_cache(maxsize=4)
def _group(shards: tuple[int, ...], members: tuple[int, ...], seed: int, epoch: int) -> Tensor:
    """The samples of some shards, shuffled together, (samples,) int64."""
    firsts = list(accumulate(shards, initial=0))
    together = torch.cat([torch.arange(firsts[number], firsts[number + 1]) for number in members])
    generator = torch.Generator().manual_seed(derive(seed, "order", epoch, "shards", *members))
    return together[torch.randperm(len(together), generator=generator)]


def longest_first(indices: Sequence[int], length: Callable[[int], float]) -> list[int]:
    """The samples of one update so that those of about the same `length` share a microbatch and little is padded.

    The update is the same: its loss is a sum over its samples. The longest come first, because where memory is too
    small for them that shows at the update's beginning, and what is smaller finds room in what they leave.
    """
    return sorted(indices, key=lambda index: -length(index))


def split(indices: Sequence[int], micro_batch: int) -> list[Sequence[int]]:
    """An update's samples as microbatches of at most `micro_batch`, as equal in size as they can be.

    64 samples by at most 7 are ten microbatches of 7 or 6, not nine of 7 and a lone one.
    """
    count = -(-len(indices) // micro_batch)
    size, larger = divmod(len(indices), count)
    cuts = [0]
    for number in range(count):
        cuts.append(cuts[-1] + size + (number < larger))
    return [indices[start:stop] for start, stop in pairwise(cuts)]
