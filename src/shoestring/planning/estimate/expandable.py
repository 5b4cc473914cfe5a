"""The caching allocator with `expandable_segments:True`: a pool is one segment, which grows page by page.

From torch's `c10/cuda/CUDACachingAllocator.cpp` (`find_expandable_block`, `map_block`, `unmap_block`): addresses are
reserved once, and memory is mapped to them in pages of 2 MiB (small pool) or 20 MiB; a free block at the end counts
with the size to which it can grow, so that smaller blocks are used first; every remainder from 512 B on is split off;
on out-of-memory, all whole pages without a used block are released, including those in the middle.
"""

from __future__ import annotations

from shoestring.planning.estimate.allocator import (
    LARGE_SEGMENT,
    ROUNDING,
    SMALL_SEGMENT,
    Allocator,
    Block,
    Pool,
    merge,
    split,
)

SEGMENT_ADDRESSES = 2**20 * LARGE_SEGMENT
"""More than the memory of any device, in whole pages; torch's segments have nine eighths of the device's memory."""


class ExpandableAllocator(Allocator):
    """An `Allocator` with expandable segments."""

    def release_unused(self) -> None:
        """Release every page without a used block to the device."""
        for pool in self._pools.values():
            for block in list(pool.free.iterate_from_size(page_size(pool))):
                start = -(-block.address // page_size(pool)) * page_size(pool)
                end = (block.address + block.size) // page_size(pool) * page_size(pool)
                if start < end:
                    self._unmap(block, start, end)

    def _pop_free_block(self, pool: Pool, size: int) -> Block | None:
        # `get_free_block`, `expandable_size`: a block that could grow is left for a request that needs it to grow.
        fitting_blocks = pool.free.iterate_from_size(size)
        best = next(fitting_blocks, None)
        if best is None:
            return None
        for block in fitting_blocks:
            if _growable_size(block) >= _growable_size(best):
                break
            best = block
        pool.free.remove(best)
        return best

    def _extend(self, pool: Pool, size: int) -> Block | None:
        """Map pages at the first position where they give a free block of this size; None without memory."""
        block: Block | None = self._find_position(pool, size)
        while block and (not block.mapped or block.size < size):
            unmapped = block.next if block.mapped else block
            assert unmapped is not None
            missing = size - (block.size if block.mapped else 0)
            block = self._map(unmapped, min(missing, unmapped.size))
        if block:
            pool.free.remove(block)
        return block

    def _least_remainder(self, *, is_small: bool) -> int:  # noqa: ARG002 - the same in both pools (`should_split`)
        return ROUNDING

    def _find_position(self, pool: Pool, size: int) -> Block:
        """Return an unmapped block, or the free block before it, with `size` bytes up to the next used block."""
        for unmapped in pool.unmapped.iterate_from_size(0):
            previous_block = unmapped.previous
            first = previous_block if previous_block and not previous_block.used else unmapped
            if _unused_size(first) >= size:
                return first
        segment = Block(self._next_address, SEGMENT_ADDRESSES, pool, mapped=False)
        self._next_address += SEGMENT_ADDRESSES
        pool.unmapped.add(segment)
        return segment

    def _map(self, block: Block, size: int) -> Block | None:
        """Map pages for the first `size` bytes of the block, and merge it with free neighbors; None without memory."""
        length = -(-size // page_size(block.pool)) * page_size(block.pool)
        if not self._reserve(length):
            return None
        block.pool.unmapped.remove(block)
        if length < block.size:
            block.pool.unmapped.add(split(block, length))
        block.mapped = True
        merge(block)
        block.pool.free.add(block)
        return block

    def _unmap(self, block: Block, start: int, end: int) -> None:
        """Release the pages from address `start` to `end`; the remainders of the block on both sides stay free."""
        free_blocks = block.pool.free
        free_blocks.remove(block)
        if end < block.address + block.size:
            free_blocks.add(split(block, end - block.address))
        if block.address < start:
            pages = split(block, start - block.address)
            free_blocks.add(block)
            block = pages
        block.mapped = False
        self.reserved -= block.size
        merge(block)
        block.pool.unmapped.add(block)


def page_size(pool: Pool) -> int:
    """Return the bytes of a page in a pool."""
    return SMALL_SEGMENT if pool.is_small else LARGE_SEGMENT


def _growable_size(block: Block) -> int:
    """Return the block's size including the unmapped addresses after it."""
    return block.size + (block.next.size if block.next and not block.next.mapped else 0)


def _unused_size(block: Block) -> int:
    """Return the bytes from the start of the block to the next used block."""
    size = 0
    current: Block | None = block
    while current and not current.used:
        size += current.size
        current = current.next
    return size
