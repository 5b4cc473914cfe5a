"""Data that are read from their beginning, piece by piece: files of a stream too large for memory, as a dataset.

How many samples each shard has is known, and that is all that it takes: from the counts and the seed follows where any
sample of any epoch lies (`order.py`), so a resumed run opens the shards that it needs next and no others.
"""

import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, islice
from typing import Any

from shoestring.data.generators import generators_kept
from shoestring.data.seeding import derive, seed_host
from shoestring.errors import DataError, UsageError


class Shards:
    """Samples in shards, as a map-style dataset::

        def data(self):
            files = sorted(folder.glob("*.jsonl.gz"))
            return Shards(files, counts, lambda file: map(json.loads, gzip.open(file, "rt")))

    `read(name)` gives the samples of a shard in their order: an iterable, which is read to its end and kept in memory,
    or a sequence (a memory map, say), which stays where it is. `decode(what was read)` makes a sample of it each time
    it is asked for; random numbers are drawn there, what `read` draws is the same each time.

    In training the shards come in another order each epoch, `mix` of them shuffled together. Each process that fetches
    keeps the last `2 * mix` shards: an update may begin in one group and end in the next. A group should hold more than
    an update; with `length`, one that holds less is read again and again.
    """

    def __init__(
        self,
        names: Iterable[Any],
        counts: Iterable[int],
        read: Callable[[Any], Iterable[Any]],
        *,
        decode: Callable[[Any], Any] | None = None,
        mix: int = 2,
    ) -> None:
        """Raises UsageError, with every problem, where names, counts and `mix` cannot be of one dataset."""
        self.names, self.shards, self.mix = list(names), tuple(counts), mix
        problems = [f"{self.names[at]}: {count} samples" for at, count in enumerate(self.shards) if count < 0]
        if len(self.names) != len(self.shards):
            problems = [f"{len(self.names)} names, {len(self.shards)} counts"]
        if mix < 1:
            problems.append(f"mix={mix}: at least 1")
        if problems:
            raise UsageError("shards need a name and a count each", problems=problems)
        self._read, self._decode = read, decode
        self._firsts = list(accumulate(self.shards, initial=0))
        self._kept: dict[int, Sequence[Any]] = {}
        self._process = os.getpid()

    def __len__(self) -> int:
        return self._firsts[-1]

    def __getitem__(self, index: int) -> Any:
        """Raises IndexError beyond the last sample, DataError where a shard has other than its count of samples."""
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        number = bisect_right(self._firsts, index) - 1
        found = self._shard(number)[index - self._firsts[number]]
        return found if self._decode is None else self._decode(found)

    def _shard(self, number: int) -> Sequence[Any]:
        """The samples of a shard, from memory where it was among the last."""
        if self._process != os.getpid():
            # A process that fetches begins with nothing: an open file would be one with its parent's, place and all.
            self._kept, self._process = {}, os.getpid()
        samples = self._kept.pop(number, None)
        if samples is None:
            while len(self._kept) >= 2 * self.mix:
                del self._kept[next(iter(self._kept))]
            samples = self._opened(number)
        self._kept[number] = samples
        return samples

    def _opened(self, number: int) -> Sequence[Any]:
        count = self.shards[number]
        with generators_kept():
            seed_host(derive(0, "shard", number))
            read: Any = self._read(self.names[number])
            # One more than there should be is enough to know, and a stream without end is no trap.
            samples = read if _is_sequence(read) else list(islice(read, count + 1))
        if len(samples) != count:
            more = "or more" if len(samples) > count and samples is not read else ""
            raise DataError(
                f"shard {self.names[number]} has {len(samples)} samples {more}".rstrip() + f", its count says {count}",
                hint="count again: which samples make up which update follows from the counts",
            )
        return samples


def _is_sequence(read: Any) -> bool:
    return hasattr(read, "__getitem__") and hasattr(read, "__len__") and not isinstance(read, dict)
