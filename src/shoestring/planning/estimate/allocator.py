"""A simulation of CUDA's caching allocator, which reserves more memory than is allocated.

The rules are those of torch's `c10/cuda/CUDACachingAllocator.cpp` with its default configuration, whose constants are
in `c10/core/AllocatorConfig.h` (torch 2.13; before, they were in the first file): sizes are rounded to 512 B; one pool
has blocks up to 1 MiB, in segments of 2 MiB, and another has larger ones, in segments of 20 MiB or, from 10 MiB on, of
their own size rounded to 2 MiB; the smallest block that fits is used, and its remainder is split off if it is large
enough; a freed block merges with its free neighbors. Every stream has its own pools.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass

from shoestring.base.units import MIB

ROUNDING = 512
"""kMinBlockSize."""
SMALL = MIB
"""kSmallSize: the largest block of the small pool."""
SMALL_SEGMENT = 2 * MIB
"""kSmallBuffer."""
LARGE_SEGMENT = 20 * MIB
"""kLargeBuffer; a default since it can be configured (`large_segment_size_mb`)."""
OWN_SEGMENT = 10 * MIB
"""kMinLargeAlloc: larger blocks have a segment of their own size."""
SEGMENT_ROUNDING = 2 * MIB
"""kRoundLarge."""


class OutOfMemory(Exception):  # noqa: N818 - an outcome that callers expect, not an error of the project
    """The device's memory does not suffice even after every unused segment was released."""


class FreeBlocks:
    """Free blocks, sorted by size, then address (`BlockComparatorSize`): of equal blocks the first address is used."""

    def __init__(self) -> None:
        self._blocks: list[tuple[int, int, Block]] = []

    def add(self, block: Block) -> None:
        insort(self._blocks, (block.size, block.address, block))

    def remove(self, block: Block) -> None:
        del self._blocks[bisect_left(self._blocks, (block.size, block.address))]

    def iterate_from_size(self, size: int) -> Iterator[Block]:
        """Yield all blocks of at least this size, the smallest first."""
        for index in range(bisect_left(self._blocks, (size,)), len(self._blocks)):
            yield self._blocks[index][2]

    def pop_smallest(self, size: int) -> Block | None:
        """Remove and return the smallest block of at least this size; None if there is no such block."""
        index = bisect_left(self._blocks, (size,))
        return self._blocks.pop(index)[2] if index < len(self._blocks) else None


class Pool:
    """The blocks of one stream up to 1 MiB, or the larger ones."""

    __slots__ = ("free", "is_small", "least_remainder", "unmapped")

    def __init__(self, *, is_small: bool, least_remainder: int) -> None:
        self.is_small = is_small
        self.least_remainder = least_remainder
        """The bytes from which on the remainder of a block is split off."""
        self.free = FreeBlocks()
        self.unmapped = FreeBlocks()
        """Addresses without memory, which are in expandable segments only."""


@dataclass(slots=True, eq=False)
class Block:
    """A part of a segment, with its neighbors in that segment."""

    address: int
    size: int
    pool: Pool
    used: bool = False
    mapped: bool = True
    """Whether memory is mapped to the addresses; can be false only in expandable segments."""
    previous: Block | None = None
    next: Block | None = None

    @property
    def is_whole_segment(self) -> bool:
        """Whether it is its segment's only block."""
        return self.previous is None and self.next is None


class Allocator:
    """Simulates allocation and counts the bytes allocated and reserved, up to `limit` bytes of the device."""

    def __init__(self, limit: int | None = None) -> None:
        self.allocated = 0
        self.reserved = 0
        self.peak_reserved = 0
        self._limit = limit
        self._next_address = 0
        self._pools: dict[tuple[str, bool], Pool] = {}

    def allocate(self, requested: int, stream: str = "") -> Block:
        """Allocate a block of at least `requested` bytes. Raises OutOfMemory."""
        size = round_up(requested)
        # The rounded size chooses the pool, and another stream's blocks are never taken (`get_pool`, `get_free_block`).
        pool = self._pools.get((stream, size <= SMALL)) or self._new_pool(stream, is_small=size <= SMALL)
        block = self._pop_free_block(pool, size) or self._reserve_block(pool, size)
        if block.size - size >= pool.least_remainder:
            pool.free.add(split(block, size))
        block.used = True
        # Of the block and not of the request, as in torch's statistics: without a split it is up to 1 MiB larger.
        self.allocated += block.size
        return block

    def free(self, block: Block) -> None:
        """Free a block that `allocate` returned."""
        assert block.used, "freed twice"
        block.used = False
        self.allocated -= block.size
        merge(block)
        block.pool.free.add(block)

    def release_unused(self) -> None:
        """Release every segment without a used block to the device."""
        # Only whole segments can be returned (cudaFree), so one small block in use holds 20 MiB (`release_blocks`).
        for pool in self._pools.values():
            for block in list(pool.free.iterate_from_size(0)):
                if block.is_whole_segment:
                    pool.free.remove(block)
                    self.reserved -= block.size

    @property
    def end(self) -> int:
        """The address where the next segment begins: those reserved so far lie before it."""
        return self._next_address

    def _new_pool(self, stream: str, *, is_small: bool) -> Pool:
        pool = Pool(is_small=is_small, least_remainder=self._least_remainder(is_small=is_small))
        self._pools[stream, is_small] = pool
        return pool

    def _least_remainder(self, *, is_small: bool) -> int:
        # `should_split`: a remainder of up to kSmallSize could serve no request of the large pool.
        return ROUNDING if is_small else SMALL + ROUNDING

    def _pop_free_block(self, pool: Pool, size: int) -> Block | None:
        return pool.free.pop_smallest(size)

    def _reserve_block(self, pool: Pool, size: int) -> Block:
        """Extend the pool for a block of this size, if necessary after releasing unused segments."""
        # The order of `malloc`: a new segment first, and unused ones are released only when the device has no memory.
        # So torch reserves more than it needs while there is room, and near the limit does with less.
        block = self._extend(pool, size)
        if block is None:
            self.release_unused()
            block = self._extend(pool, size)
            if block is None:
                raise OutOfMemory(f"{size} bytes do not fit in addition to {self.reserved} reserved bytes")
        return block

    def _extend(self, pool: Pool, size: int) -> Block | None:
        """Return a new segment for a block of this size; None if the device lacks the memory."""
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


def split(block: Block, size: int) -> Block:
    """Shorten the block to `size` and return its remainder as a new block."""
    following = block.next
    remainder = Block(block.address + size, block.size - size, block.pool, False, block.mapped, block, following)
    if following:
        following.previous = remainder
    block.next, block.size = remainder, size
    return remainder


def merge(block: Block) -> None:
    """Merge the free neighbors on both sides into the block."""
    previous_block, next_block = block.previous, block.next
    if previous_block and not previous_block.used and previous_block.mapped == block.mapped:
        remove_unused(previous_block)
        block.address, block.previous = previous_block.address, previous_block.previous
        block.size += previous_block.size
        if block.previous:
            block.previous.next = block
    if next_block and not next_block.used and next_block.mapped == block.mapped:
        remove_unused(next_block)
        block.next = next_block.next
        block.size += next_block.size
        if block.next:
            block.next.previous = block


def remove_unused(block: Block) -> None:
    """Remove a block that is not used from its pool."""
    (block.pool.free if block.mapped else block.pool.unmapped).remove(block)


def round_up(requested: int) -> int:
    """Return the bytes of a block for so many requested bytes."""
    return -(-requested // ROUNDING) * ROUNDING


def segment_size(size: int) -> int:
    """Return the bytes reserved on the device for a block of this (rounded) size."""
    if size <= SMALL:
        return SMALL_SEGMENT
    if size < OWN_SEGMENT:
        return LARGE_SEGMENT
    return -(-size // SEGMENT_ROUNDING) * SEGMENT_ROUNDING
