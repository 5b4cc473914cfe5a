"""CUDA's caching allocator, simulated: what is reserved above what is allocated.

The rules are those of torch's `c10/cuda/CUDACachingAllocator.cpp` with its default configuration: sizes rounded to
512 B; a pool for blocks up to 1 MiB, in segments of 2 MiB, and one for larger ones, in segments of 20 MiB or, from
10 MiB on, of their own size rounded to 2 MiB; the smallest block that fits, the remainder split off where it is worth
it; a freed block merges with its free neighbours. Every stream has pools of its own.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from shoestring.units import MIB

ROUNDING = 512
SMALL = MIB
SMALL_SEGMENT = 2 * MIB
LARGE_SEGMENT = 20 * MIB
OWN_SEGMENT = 10 * MIB
SEGMENT_ROUNDING = 2 * MIB

Pool: TypeAlias = tuple[str, bool]
"""A stream, and whether blocks are small ones."""


class Exhausted(Exception):  # noqa: N818 - an outcome that callers expect, no error of the project
    """The device's memory does not suffice, also after every unused segment was given back."""


@dataclass(slots=True, eq=False)
class Block:
    """Part of a segment, between its neighbours there."""

    address: int
    size: int
    pool: Pool
    used: bool = False
    mapped: bool = True
    """Whether there is memory behind the addresses; always so but in segments that expand."""
    before: Block | None = None
    after: Block | None = None

    @property
    def whole(self) -> bool:
        """Whether it is its segment's only block."""
        return self.before is None and self.after is None


class FreeBlocks:
    """Blocks by size, then address."""

    def __init__(self) -> None:
        self._blocks: list[tuple[int, int, Block]] = []

    def add(self, block: Block) -> None:
        insort(self._blocks, (block.size, block.address, block))

    def remove(self, block: Block) -> None:
        del self._blocks[bisect_left(self._blocks, (block.size, block.address))]

    def from_size(self, size: int) -> Iterator[Block]:
        """All of at least this size, the smallest first."""
        for place in range(bisect_left(self._blocks, (size,)), len(self._blocks)):
            yield self._blocks[place][2]

    def take_smallest(self, size: int) -> Block | None:
        place = bisect_left(self._blocks, (size,))
        return self._blocks.pop(place)[2] if place < len(self._blocks) else None


class Allocator:
    """Bytes allocated and reserved as requests come and go; `limit` is what the device has for it."""

    def __init__(self, limit: int | None = None) -> None:
        self.allocated = 0
        self.reserved = 0
        self.peak_reserved = 0
        self._limit = limit
        self._next_address = 0
        self._free: dict[Pool, FreeBlocks] = defaultdict(FreeBlocks)

    def allocate(self, requested: int, stream: str = "") -> Block:
        """A block of at least `requested` bytes. Raises Exhausted."""
        size = rounded(requested)
        pool = (stream, size <= SMALL)
        block = self._take(pool, size) or self._grow(pool, size)
        if block.size > size and self._worth_splitting(block, block.size - size):
            self._free[pool].add(self._cut(block, size))
        block.used = True
        self.allocated += block.size
        return block

    def free(self, block: Block) -> None:
        """Return a block that `allocate` gave."""
        assert block.used, "freed twice"
        block.used = False
        self.allocated -= block.size
        self._join(block)
        self._free[block.pool].add(block)

    def release_unused(self) -> None:
        """Give every segment without a used block back to the device."""
        for free in self._free.values():
            for block in list(free.from_size(0)):
                if block.whole:
                    free.remove(block)
                    self.reserved -= block.size

    def _take(self, pool: Pool, size: int) -> Block | None:
        return self._free[pool].take_smallest(size)

    def _grow(self, pool: Pool, size: int) -> Block:
        block = self._extend(pool, size)
        if block is None:
            self.release_unused()
            block = self._extend(pool, size)
            if block is None:
                raise Exhausted(f"{size} bytes above {self.reserved}")
        return block

    def _extend(self, pool: Pool, size: int) -> Block | None:
        """A new segment for a block of this size; None where the device has no room."""
        length = segment_size(size)
        if not self._reserve(length):
            return None
        block = Block(self._next_address, length, pool)
        self._next_address += length
        return block

    def _reserve(self, length: int) -> bool:
        if self._limit is not None and self.reserved + length > self._limit:
            return False
        self.reserved += length
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        return True

    def _worth_splitting(self, block: Block, remainder: int) -> bool:
        return remainder >= ROUNDING if block.pool[1] else remainder > SMALL

    def _cut(self, block: Block, size: int) -> Block:
        """Shorten the block to `size`; the rest is a block of its own."""
        rest = Block(block.address + size, block.size - size, block.pool, mapped=block.mapped, before=block)
        rest.after = block.after
        if block.after:
            block.after.before = rest
        block.after, block.size = rest, size
        return rest

    def _join(self, block: Block) -> None:
        """Take in the free neighbours on both sides, which are no blocks of their own from then on."""
        before, after = block.before, block.after
        if before and not before.used and before.mapped == block.mapped:
            self._forget(before)
            block.address, block.before = before.address, before.before
            block.size += before.size
            if block.before:
                block.before.after = block
        if after and not after.used and after.mapped == block.mapped:
            self._forget(after)
            block.after = after.after
            block.size += after.size
            if block.after:
                block.after.before = block

    def _forget(self, block: Block) -> None:
        self._free[block.pool].remove(block)


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
