"""The caching allocator with `expandable_segments:True`: a pool is one segment, which grows page by page.

From torch's `c10/cuda/CUDACachingAllocator.cpp` (`find_expandable_block`, `map_block`, `unmap_block`): addresses are
reserved once, memory is mapped behind them in pages of 2 MiB (small pool) or 20 MiB; a free block at the end counts
as large as it can become, so that smaller ones are taken first; every remainder from 512 B on is split off; short of
memory, all whole pages without a used block are given back, also those in the middle.
"""

from __future__ import annotations

from collections import defaultdict

from shoestring.estimate.allocator import (
    LARGE_SEGMENT,
    ROUNDING,
    SMALL_SEGMENT,
    Allocator,
    Block,
    FreeBlocks,
    Pool,
)

SEGMENT_ADDRESSES = 2**20 * LARGE_SEGMENT
"""More than any device has, in whole pages; torch's segments have nine eighths of the device's memory."""


class ExpandableAllocator(Allocator):
    """As `Allocator`, for the same requests."""

    def __init__(self, limit: int | None = None) -> None:
        super().__init__(limit)
        self._unmapped: dict[Pool, FreeBlocks] = defaultdict(FreeBlocks)

    def release_unused(self) -> None:
        """Give every page without a used block back to the device."""
        for pool, free in self._free.items():
            for block in list(free.from_size(page(pool))):
                first = -(-block.address // page(pool)) * page(pool)
                last = (block.address + block.size) // page(pool) * page(pool)
                if first < last:
                    self._unmap(block, first, last)

    def _take(self, pool: Pool, size: int) -> Block | None:
        fitting = self._free[pool].from_size(size)
        best = next(fitting, None)
        if best is None:
            return None
        for block in fitting:
            if _can_become(block) >= _can_become(best):
                break
            best = block
        self._free[pool].remove(best)
        return best

    def _extend(self, pool: Pool, size: int) -> Block | None:
        """The first place where mapping pages gives a free block of this size; None where the device has no room."""
        block: Block | None = self._place(pool, size)
        while block and (not block.mapped or block.size < size):
            unmapped = block.after if block.mapped else block
            assert unmapped is not None
            missing = size - (block.size if block.mapped else 0)
            block = self._map(unmapped, min(missing, unmapped.size))
        if block:
            self._free[pool].remove(block)
        return block

    def _worth_splitting(self, block: Block, remainder: int) -> bool:  # noqa: ARG002 - the same in both pools
        return remainder >= ROUNDING

    def _place(self, pool: Pool, size: int) -> Block:
        """A free block before pages to be mapped, or those pages, with `size` bytes up to the next used block."""
        for unmapped in self._unmapped[pool].from_size(0):
            before = unmapped.before
            first = before if before and not before.used else unmapped
            if _room(first) >= size:
                return first
        segment = Block(self._next_address, SEGMENT_ADDRESSES, pool, mapped=False)
        self._next_address += SEGMENT_ADDRESSES
        self._unmapped[pool].add(segment)
        return segment

    def _map(self, block: Block, size: int) -> Block | None:
        """Pages for the first `size` bytes of the block, which joins its free neighbours; None without room."""
        length = -(-size // page(block.pool)) * page(block.pool)
        if not self._reserve(length):
            return None
        self._unmapped[block.pool].remove(block)
        if length < block.size:
            self._unmapped[block.pool].add(self._cut(block, length))
        block.mapped = True
        self._join(block)
        self._free[block.pool].add(block)
        return block

    def _unmap(self, block: Block, first: int, last: int) -> None:
        """Give the pages from address `first` to `last` back; what is left of the block on both sides stays free."""
        free = self._free[block.pool]
        free.remove(block)
        if last < block.address + block.size:
            free.add(self._cut(block, last - block.address))
        if block.address < first:
            pages = self._cut(block, first - block.address)
            free.add(block)
            block = pages
        block.mapped = False
        self.reserved -= block.size
        self._join(block)
        self._unmapped[block.pool].add(block)

    def _forget(self, block: Block) -> None:
        (self._free if block.mapped else self._unmapped)[block.pool].remove(block)


def page(pool: Pool) -> int:
    """Bytes mapped at once in a pool."""
    return SMALL_SEGMENT if pool[1] else LARGE_SEGMENT


def _can_become(block: Block) -> int:
    """Its size with the unmapped addresses behind it."""
    return block.size + (block.after.size if block.after and not block.after.mapped else 0)


def _room(block: Block) -> int:
    """Bytes from the block to the next used one."""
    room = 0
    following: Block | None = block
    while following and not following.used:
        room += following.size
        following = following.after
    return room
