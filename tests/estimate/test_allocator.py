"""The simulated caching allocator: torch's rules one by one, and what must hold whatever is asked of it."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoestring.estimate.allocator import Allocator, Block, Exhausted
from shoestring.units import MIB


@pytest.mark.parametrize(
    ("requested", "allocated", "reserved"),
    [
        (1, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        # The remainder of a large segment is split off only if it is more than 1 MiB.
        (11 * MIB, 12 * MIB, 12 * MIB),
        (33 * MIB + 1, 34 * MIB, 34 * MIB),
    ],
)
def test_a_first_request(requested: int, allocated: int, reserved: int) -> None:
    allocator = Allocator()
    allocator.allocate(requested)
    assert (allocator.allocated, allocator.reserved) == (allocated, reserved)


def test_the_smallest_block_that_fits_is_taken() -> None:
    allocator = Allocator()
    large, small = allocator.allocate(40 * MIB), allocator.allocate(30 * MIB)
    allocator.free(large)
    allocator.free(small)
    assert allocator.allocate(30 * MIB).address == small.address


def test_neighbours_merge_when_freed() -> None:
    allocator = Allocator()
    blocks = [allocator.allocate(5 * MIB) for _ in range(4)]
    assert allocator.reserved == 20 * MIB
    for block in (blocks[0], blocks[2], blocks[1], blocks[3]):
        allocator.free(block)
    assert allocator.allocate(20 * MIB).address == blocks[0].address
    assert allocator.reserved == 20 * MIB


def test_small_requests_do_not_take_large_blocks() -> None:
    allocator = Allocator()
    allocator.free(allocator.allocate(5 * MIB))
    allocator.allocate(1000)
    assert allocator.reserved == 22 * MIB


def test_unused_segments_are_given_back_before_the_memory_is_exhausted() -> None:
    allocator = Allocator(limit=64 * MIB)
    allocator.free(allocator.allocate(40 * MIB))
    allocator.allocate(50 * MIB)
    assert allocator.reserved == 50 * MIB
    assert allocator.peak_reserved == 50 * MIB
    with pytest.raises(Exhausted):
        allocator.allocate(20 * MIB)


# Sizes around every rule; a number instead of a size frees one of the blocks in use.
SIZES = st.one_of(
    st.integers(1, 3000), st.integers(MIB - 2000, MIB + 2000), st.integers(2 * MIB, 12 * MIB), st.integers(1, 50 * MIB)
)


@given(st.lists(st.one_of(SIZES.map(lambda size: ("allocate", size)), st.integers(0, 99).map(lambda n: ("free", n)))))
def test_blocks_never_overlap_and_bytes_are_conserved(steps: list[tuple[str, int]]) -> None:
    allocator = Allocator()
    used: list[tuple[Block, int]] = []
    for what, number in steps:
        if what == "allocate":
            used.append((allocator.allocate(number), number))
        elif used:
            allocator.free(used.pop(number % len(used))[0])
        spans = sorted((block.address, block.address + block.size) for block, _ in used)
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))
        assert all(block.size >= requested for block, requested in used)
        assert allocator.allocated == sum(block.size for block, _ in used)
        assert allocator.allocated <= allocator.reserved <= allocator.peak_reserved
    for block, _ in used:
        allocator.free(block)
    assert allocator.allocated == 0
    # Whatever the order of frees, every segment is one free block again.
    allocator.release_unused()
    assert allocator.reserved == 0
