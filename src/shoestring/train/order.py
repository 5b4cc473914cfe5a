"""Which samples make up which update: a pure function of (seed, epoch, effective batch).

Microbatch, workers, number of GPUs and interruptions do not enter, so the update number alone is the data position.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import torch
from torch import Tensor

from shoestring.recipe import updates_per_epoch
from shoestring.train.seeding import derive


@dataclass(frozen=True, kw_only=True)
class DataOrder:
    """Every sample once an epoch, shuffled anew each epoch, dealt into updates as `updates_per_epoch` says."""

    samples: int
    effective_batch: int
    seed: int

    @property
    def updates_per_epoch(self) -> int:
        return updates_per_epoch(self.samples, self.effective_batch)

    def place(self, update: int) -> tuple[int, int]:
        """(epoch, number of the update in it), both from 0."""
        return divmod(update, self.updates_per_epoch)

    def indices(self, update: int) -> list[int]:
        """The samples of update number `update` (from 0, over all epochs), in their order."""
        epoch, number = self.place(update)
        start = number * self.effective_batch
        stop = self.samples if number == self.updates_per_epoch - 1 else start + self.effective_batch
        return _permutation(self.samples, self.seed, epoch)[start:stop].tolist()


# A permutation of a large data set takes a while and an epoch asks for it once an update; who fetches ahead asks for
# the next epoch's while this one's is still in use. A tensor, for 100 million samples take 4 GB as a list.
@lru_cache(maxsize=2)
def _permutation(samples: int, seed: int, epoch: int) -> Tensor:
    """The samples in the order of an epoch, (samples,) int64."""
    return torch.randperm(samples, generator=torch.Generator().manual_seed(derive(seed, "order", epoch)))


def longest_first(indices: Sequence[int], length: Callable[[int], int]) -> list[int]:
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
