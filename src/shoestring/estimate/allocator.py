"""CUDA's caching allocator, simulated: what is reserved above what is allocated.

The rules are those of torch's `c10/cuda/CUDACachingAllocator.cpp` with its default configuration: sizes rounded to
512 B; a pool for blocks up to 1 MiB, in segments of 2 MiB, and one for larger ones, in segments of 20 MiB or, from
10 MiB on, of their own size rounded to 2 MiB; the smallest block that fits, the remainder split off where it is worth
it; a freed block merges with its free neighbours. One stream.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

from shoestring.units import MIB

ROUNDING = 512
SMALL = MIB
SMALL_SEGMENT = 2 * MIB
LARGE_SEGMENT = 20 * MIB
OWN_SEGMENT = 10 * MIB
SEGMENT_ROUNDING = 2 * MIB


class Exhausted(Exception):  # noqa: N818 - an outcome that callers expect, no error of the project
    """The device's memory does not suffice, also after every unused segment was given back."""


@dataclass(slots=True, eq=False)
class Block:
    """Part of a segment, between its neighbours there."""

    address: int
    size: int
    small: bool
    used: bool = False
    before: Block | None = None
    after: Block | None = None

    @property
    def whole(self) -> bool:
        """Whether it is its segment's only block."""
        return self.before is None and self.after is None


class Allocator:
    """Bytes allocated and reserved as requests come and go; `limit` is what the device has for it."""

    def __init__(self, limit: int | None = None) -> None:
        self.allocated = 0
        self.reserved = 0
        self.peak_reserved = 0
        self._limit = limit
        self._next_address = 0
        self._free: dict[bool, list[tuple[int, int, Block]]] = {True: [], False: []}
        """Of the small and of the large pool: free blocks by size, then address."""

    def allocate(self, requested: int) -> Block:
        """A block of at least `requested` bytes. Raises Exhausted."""
        size = rounded(requested)
        block = self._take(size) or self._new_segment(size)
        remainder = block.size - size
        if remainder >= ROUNDING if block.small else remainder > SMALL:
            self._split(block, size)
        block.used = True
        self.allocated += block.size
        return block

    def free(self, block: Block) -> None:
        """Return a block that `allocate` gave."""
        assert block.used, "freed twice"
        block.used = False
        self.allocated -= block.size
        for neighbour in (block.before, block.after):
            if neighbour and not neighbour.used:
                self._forget(neighbour)
                self._merge(block, neighbour)
        self._remember(block)

    def _take(self, size: int) -> Block | None:
        pool = self._free[size <= SMALL]
        place = bisect_left(pool, (size, -1))
        return pool.pop(place)[2] if place < len(pool) else None

    def _new_segment(self, size: int) -> Block:
        length = segment_size(size)
        if not self._has_room(length):
            self.release_unused()
            if not self._has_room(length):
                raise Exhausted(f"{length} bytes above {self.reserved}")
        self.reserved += length
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        block = Block(self._next_address, length, size <= SMALL)
        self._next_address += length
        return block

    def _has_room(self, length: int) -> bool:
        return self._limit is None or self.reserved + length <= self._limit

    def release_unused(self) -> None:
        """Give every segment without a used block back to the device."""
        for small, pool in self._free.items():
            self.reserved -= sum(block.size for *_, block in pool if block.whole)
            self._free[small] = [entry for entry in pool if not entry[2].whole]

    def _split(self, block: Block, size: int) -> None:
        rest = Block(block.address + size, block.size - size, block.small, before=block, after=block.after)
        if block.after:
            block.after.before = rest
        block.after, block.size = rest, size
        self._remember(rest)

    def _merge(self, block: Block, neighbour: Block) -> None:
        if neighbour is block.before:
            block.address, block.before = neighbour.address, neighbour.before
            if block.before:
                block.before.after = block
        else:
            block.after = neighbour.after
            if block.after:
                block.after.before = block
        block.size += neighbour.size

    def _remember(self, block: Block) -> None:
        insort(self._free[block.small], (block.size, block.address, block))

    def _forget(self, block: Block) -> None:
        pool = self._free[block.small]
        del pool[bisect_left(pool, (block.size, block.address))]


def rounded(requested: int) -> int:
    """Bytes a block takes for so many requested."""
    return -(-requested // ROUNDING) * ROUNDING


def segment_size(size: int) -> int:
    """Bytes asked of the device for a block of this (rounded) size."""
    if size <= SMALL:
        return SMALL_SEGMENT
    if size < OWN_SEGMENT:
        return LARGE_SEGMENT
    return -(-size // SEGMENT_ROUNDING) * SEGMENT_ROUNDING
