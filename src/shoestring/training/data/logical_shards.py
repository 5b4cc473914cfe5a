"""Logical shards: the parts of an update that are summed one by one, and then added in a fixed order.

Their number belongs to the run, as the seed does. So the result of an update does not depend on the number of processes
that share its logical shards: 1, 2 and 4 processes end in the same bits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from shoestring.recipe.microbatches import split
from shoestring.training.data.seeding import derive

_T = TypeVar("_T")


@dataclass(frozen=True)
class LogicalShards:
    """The logical shards of an update, and the consecutive ones of this process.

    The samples of an update, longest first, are dealt to the shards one after the other, so that each has short and
    long ones. No shard has a single sample, for which BatchNorm has no statistics: if there are few samples, the last
    shards are empty.
    """

    count: int = 1
    """A power of two."""
    own: range = range(1)

    @classmethod
    def of_rank(cls, count: int, rank: int = 0, size: int = 1) -> "LogicalShards":
        """Return the shards of one of `size` processes, a divisor of `count`."""
        per_rank = count // size
        return cls(count, range(rank * per_rank, (rank + 1) * per_rank))

    @property
    def by_rank(self) -> list[range]:
        """The shards of each process."""
        count = len(self.own)
        return [range(first, first + count) for first in range(0, self.count, count)]

    def occupied(self, samples: int) -> int:
        """Return the number of shards that have samples."""
        return max(1, min(self.count, samples // 2))

    def deal(self, indices: Sequence[int], shard: int) -> Sequence[int]:
        """Return the samples of a shard."""
        occupied = self.occupied(len(indices))
        return indices[shard::occupied] if shard < occupied else ()

    def split(self, members: Sequence[_T], micro_batch: int) -> list[Sequence[_T]]:
        """Split the samples of a shard, or its packed rows, into microbatches of at most `micro_batch`.

        A microbatch has one more to avoid a single one.

        An update that is one shard is split as in version 0.1.0, into microbatches that may be single samples.
        """
        parts = split(members, micro_batch)
        if self.count > 1 and micro_batch > 1 and len(parts) > 1 and len(parts[-1]) == 1:
            return split(members, -(-len(members) // (len(parts) - 1)))
        return parts

    def seed(self, seed: int, update: int, shard: int) -> int:
        """Return the seed of the random numbers of a shard; with one shard, that of the update."""
        place: tuple[str | int, ...] = ("update", update) if self.count == 1 else ("update", update, "shard", shard)
        return derive(seed, *place)
