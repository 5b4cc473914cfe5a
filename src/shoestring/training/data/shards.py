"""A dataset of shards: files too large for memory that can only be read sequentially.

The number of samples of each shard must be known. The counts and the seed determine the position of every sample in
every epoch (`order.py`), so a resumed run opens only the shards that it needs next.
"""

import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, islice
from typing import Any

from shoestring.base.errors import DataError, UsageError
from shoestring.training.data.generators import preserved_generators
from shoestring.training.data.seeding import derive, seed_host


class Shards:
    """Samples in shards, as a map-style dataset::

        def data(self):
            files = sorted(folder.glob("*.jsonl.gz"))
            return Shards(files, counts, lambda file: map(json.loads, gzip.open(file, "rt")))

    `read(name)` returns the raw samples of a shard in their order: an iterable, which is read to its end and cached in
    memory, or a sequence (such as a memory map), which is used as it is. `decode(raw_sample)` converts a raw sample
    each time it is fetched. Draw random numbers in `decode`: those drawn in `read` are the same each time.

    In training the order of the shards changes each epoch, and `mix` of them are shuffled together. Each worker process
    caches the last `2 * mix` shards, since an update may span two groups. A group should have more samples than an
    update; with `length`, smaller groups are read repeatedly.
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
        """Raises UsageError, which lists every problem, if names, counts and `mix` are inconsistent."""
        self.names, self.shards, self.mix = list(names), tuple(counts), mix
        problems = [f"{self.names[number]}: {count} samples" for number, count in enumerate(self.shards) if count < 0]
        if len(self.names) != len(self.shards):
            problems = [f"{len(self.names)} names, {len(self.shards)} counts"]
        if mix < 1:
            problems.append(f"mix={mix}: must be at least 1")
        if problems:
            raise UsageError("shards need a name and a count each", problems=problems)
        self._read, self._decode = read, decode
        self._firsts = list(accumulate(self.shards, initial=0))
        self._cache: dict[int, Sequence[Any]] = {}
        self._process = os.getpid()

    def __len__(self) -> int:
        return self._firsts[-1]

    def __getitem__(self, index: int) -> Any:
        """Raises IndexError beyond the last sample, DataError if a shard's number of samples differs from its count."""
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        number = bisect_right(self._firsts, index) - 1
        sample = self._shard(number)[index - self._firsts[number]]
        return sample if self._decode is None else self._decode(sample)

    def _shard(self, number: int) -> Sequence[Any]:
        """Return the samples of a shard, from the cache if possible."""
        if self._process != os.getpid():
            # A forked process starts with an empty cache: an open file would share its position with the parent's.
            self._cache, self._process = {}, os.getpid()
        samples = self._cache.pop(number, None)
        if samples is None:
            while len(self._cache) >= 2 * self.mix:
                del self._cache[next(iter(self._cache))]
            samples = self._read_shard(number)
        self._cache[number] = samples
        return samples

    def _read_shard(self, number: int) -> Sequence[Any]:
        count = self.shards[number]
        with preserved_generators():
            seed_host(derive(0, "shard", number))
            source: Any = self._read(self.names[number])
            # One sample more than the count is enough to detect a mismatch, even in an endless stream.
            samples = source if _is_sequence(source) else list(islice(source, count + 1))
        if len(samples) != count:
            or_more = " or more" if len(samples) > count and samples is not source else ""
            raise DataError(
                f"shard {self.names[number]} has {len(samples)} samples{or_more}, but its count is {count}",
                hint="correct the count: the counts determine which samples make up an update",
            )
        return samples


def _is_sequence(source: Any) -> bool:
    return hasattr(source, "__getitem__") and hasattr(source, "__len__") and not isinstance(source, dict)
