"""The simulated caching allocator: each of torch's rules, and invariants under any requests."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoestring.base.units import MIB
from shoestring.planning.estimate.allocator import (
    LARGE_SEGMENT,
    SMALL_SEGMENT,
    Allocator,
    Block,
    OutOfMemory,
    segment_size,
)
from shoestring.planning.estimate.expandable import ExpandableAllocator, page_size


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
def test_first_request_rounds_and_reserves(requested: int, allocated: int, reserved: int) -> None:
    allocator = Allocator()
    allocator.allocate(requested)
    assert (allocator.allocated, allocator.reserved) == (allocated, reserved)


def test_smallest_fitting_block_is_used() -> None:
    allocator = Allocator()
    large, small = allocator.allocate(40 * MIB), allocator.allocate(30 * MIB)
    allocator.free(large)
    allocator.free(small)
    assert allocator.allocate(30 * MIB).address == small.address


def test_freed_neighbors_merge() -> None:
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


def test_unused_segments_are_released_before_out_of_memory() -> None:
    allocator = Allocator(limit=64 * MIB)
    allocator.free(allocator.allocate(40 * MIB))
    allocator.allocate(50 * MIB)
    assert allocator.reserved == 50 * MIB
    assert allocator.peak_reserved == 50 * MIB
    with pytest.raises(OutOfMemory):
        allocator.allocate(20 * MIB)


def test_streams_do_not_share_free_blocks() -> None:
    allocator = Allocator()
    allocator.free(allocator.allocate(40 * MIB, "copy-in"))
    allocator.allocate(40 * MIB)
    assert allocator.reserved == 80 * MIB
    allocator.allocate(40 * MIB, "copy-in")
    assert allocator.reserved == 80 * MIB


@pytest.mark.parametrize(
    ("requested", "allocated", "reserved"),
    [
        (1, 512, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (11 * MIB, 11 * MIB, 20 * MIB),
        (33 * MIB + 1, 33 * MIB + 512, 40 * MIB),
    ],
)
def test_first_request_with_expandable_segments(requested: int, allocated: int, reserved: int) -> None:
    allocator = ExpandableAllocator()
    allocator.allocate(requested)
    assert (allocator.allocated, allocator.reserved) == (allocated, reserved)


def test_expandable_segment_grows_only_by_missing_pages() -> None:
    allocator = ExpandableAllocator()
    first, last = allocator.allocate(10 * MIB), allocator.allocate(50 * MIB)
    allocator.free(last)
    assert allocator.reserved == 60 * MIB
    grown = allocator.allocate(70 * MIB)
    assert (grown.address, allocator.reserved) == (first.size, 80 * MIB)


def test_inner_block_is_preferred_to_growable_end() -> None:
    allocator = ExpandableAllocator()
    inside, _, end = (allocator.allocate(size * MIB) for size in (30, 5, 5))
    allocator.free(inside)
    allocator.free(end)
    # 5 MiB at the end would fit better.
    assert allocator.allocate(4 * MIB).address == inside.address


def test_unused_pages_inside_a_segment_are_released() -> None:
    allocator = ExpandableAllocator(limit=140 * MIB)
    blocks = [allocator.allocate(size * MIB) for size in (30, 70, 40)]
    allocator.free(blocks[1])
    allocator.release_unused()
    # The whole pages in the free range of 30 to 100 MiB start at 40 MiB.
    assert allocator.reserved == 80 * MIB
    assert allocator.allocate(55 * MIB).address == 30 * MIB
    assert allocator.reserved == 140 * MIB


def test_free_block_does_not_merge_with_unmapped_addresses() -> None:
    allocator = ExpandableAllocator()
    blocks = [allocator.allocate(20 * MIB) for _ in range(3)]
    allocator.free(blocks[1])
    allocator.release_unused()
    allocator.free(blocks[2])
    assert allocator.reserved == 40 * MIB
    assert allocator.allocate(30 * MIB).address == 20 * MIB
    assert allocator.reserved == 60 * MIB


def test_expandable_segments_fit_where_fixed_segments_do_not() -> None:
    for kind, fits in ((Allocator, False), (ExpandableAllocator, True)):
        allocator = kind(limit=100 * MIB)
        blocks = [allocator.allocate(20 * MIB) for _ in range(5)]
        for block in blocks[1:4]:
            allocator.free(block)
        if fits:
            assert allocator.allocate(60 * MIB).address == blocks[1].address
            assert allocator.reserved == 100 * MIB
        else:
            allocator.allocate(20 * MIB)
            with pytest.raises(OutOfMemory):
                allocator.allocate(60 * MIB)


def test_expandable_segments_may_reserve_more() -> None:
    peaks = []
    for kind in (Allocator, ExpandableAllocator):
        allocator = kind()
        first = allocator.allocate(41 * MIB)
        allocator.allocate(3 * MIB)
        allocator.free(first)
        # A segment of 20 MiB has space for it next to the 3 MiB; the expandable one splits the free 41 MiB.
        allocator.allocate(5 * MIB)
        allocator.allocate(41 * MIB)
        peaks.append(allocator.peak_reserved)
    assert peaks == [62 * MIB, 100 * MIB]


# Sizes around the threshold of each rule.
SIZES = st.one_of(
    st.integers(1, 3000), st.integers(MIB - 2000, MIB + 2000), st.integers(2 * MIB, 12 * MIB), st.integers(1, 50 * MIB)
)


STEPS = st.lists(
    st.one_of(
        SIZES.map(lambda size: ("allocate", size)),
        st.integers(0, 99).map(lambda number: ("free", number)),
        st.just(("release", 0)),
    )
)
KINDS = st.sampled_from([Allocator, ExpandableAllocator])


@given(KINDS, STEPS)
def test_blocks_never_overlap_and_bytes_are_conserved(kind: type[Allocator], steps: list[tuple[str, int]]) -> None:
    allocator = kind()
    used: list[tuple[Block, int]] = []
    for action, number in steps:
        if action == "allocate":
            used.append((allocator.allocate(number), number))
        elif action == "release":
            allocator.release_unused()
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
    # After frees in any order, every segment is one free block again.
    allocator.release_unused()
    assert allocator.reserved == 0


@given(KINDS, STEPS)
def test_limit_rejects_only_requests_that_do_not_fit(kind: type[Allocator], steps: list[tuple[str, int]]) -> None:
    limit = 120 * MIB
    allocator = kind(limit)
    used: list[Block] = []
    for action, number in steps:
        if action == "free" and used:
            allocator.free(used.pop(number % len(used)))
        elif action == "allocate":
            try:
                used.append(allocator.allocate(number))
            except OutOfMemory:
                allocator.release_unused()
                needed = segment_size(number)
                if kind is ExpandableAllocator and needed > SMALL_SEGMENT:
                    needed = -(-needed // LARGE_SEGMENT) * LARGE_SEGMENT  # whole pages
                assert allocator.reserved + needed > limit
        assert allocator.reserved <= limit


@given(st.lists(SIZES))
def test_without_frees_expandable_segments_reserve_little_more(sizes: list[int]) -> None:
    fixed, expandable = Allocator(), ExpandableAllocator()
    for size in sizes:
        fixed.allocate(size)
        expandable.allocate(size)
    assert expandable.allocated <= fixed.allocated
    assert expandable.reserved <= fixed.reserved + SMALL_SEGMENT + LARGE_SEGMENT


@given(STEPS)
def test_expandable_segment_grows_only_if_nothing_fits(steps: list[tuple[str, int]]) -> None:
    allocator = ExpandableAllocator()
    used: list[Block] = []
    for action, number in steps:
        if action == "free" and used:
            allocator.free(used.pop(number % len(used)))
        elif action == "allocate":
            before, free = allocator.reserved, allocator.reserved - allocator.allocated
            used.append(allocator.allocate(number))
            grown = allocator.reserved - before
            assert grown < number + LARGE_SEGMENT
            if grown:
                # The pages belong to the pool that lacked memory, and there are no more than necessary.
                assert grown >= page_size(used[-1].pool)
                assert allocator.reserved - allocator.allocated <= free + page_size(used[-1].pool)
