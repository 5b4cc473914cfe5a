"""Which blocks are streamed and when they are copied."""

import itertools
import random

import pytest

from shoestring.techniques.streaming.schedule import (
    SlotContents,
    copies,
    next_in_slots,
    streamed_positions,
    uses_of_update,
)


@pytest.mark.parametrize(
    ("blocks", "streamed", "positions"),
    [(4, 4, [0, 1, 2, 3]), (8, 4, [1, 3, 5, 7]), (8, 2, [2, 6]), (32, 3, [5, 16, 26]), (5, 1, [2]), (3, 0, [])],
)
def test_streamed_blocks_are_spread_evenly(blocks: int, streamed: int, positions: list[int]) -> None:
    assert streamed_positions(blocks, streamed) == positions


def test_every_number_of_blocks_can_be_streamed() -> None:
    for blocks in range(1, 40):
        for streamed in range(blocks + 1):
            positions = streamed_positions(blocks, streamed)
            assert len(set(positions)) == streamed and set(positions) <= set(range(blocks))
            gaps = [b - a for a, b in itertools.pairwise(positions)]
            assert not gaps or max(gaps) - min(gaps) <= 1


def test_next_blocks_are_those_of_the_direction() -> None:
    assert next_in_slots(0, 6, 2, "forward") == [0, 1]
    assert next_in_slots(5, 6, 2, "forward") == [5, 4]  # backward begins with the last two, which are there
    assert next_in_slots(6, 6, 2, "forward") == [5, 4]
    assert next_in_slots(3, 6, 2, "backward") == [3, 2]
    assert next_in_slots(0, 6, 2, "backward") == [0, 1]  # then the next forward begins
    assert next_in_slots(5, 6, 2, "inference") == [5, 0]
    assert next_in_slots(4, 5, 2, "inference") == [4, 1]  # block 0 needs the slot of block 4
    assert next_in_slots(2, 7, 3, "backward") == [2, 1, 0]
    assert next_in_slots(0, 1, 2, "forward") == [0]


def test_an_update_copies_each_block_once_in_each_direction() -> None:
    for count, slots in [(6, 2), (7, 2), (7, 3), (3, 3), (2, 2), (1, 2)]:
        contents = SlotContents(count, slots)
        copies(uses_of_update(count), contents)
        second = copies(uses_of_update(count), contents)
        assert len(second) == 2 * max(0, count - slots)
        assert contents.blocks == list(range(min(count, slots)))


def test_copies_start_when_a_slot_is_free_and_one_use_ahead() -> None:
    contents = SlotContents(5, 2)
    first, second = (copies(uses_of_update(5), contents) for _ in range(2))
    assert [(copy.block, copy.use, copy.at_end) for copy in first][:2] == [(0, 0, False), (1, 0, False)]
    # Uses 0 to 4 are the forward, 5 to 9 the backward of blocks 4 to 0.
    assert [(copy.block, copy.use, copy.at_end, copy.needed_by) for copy in second] == [
        (2, 0, True, 2),
        (3, 1, True, 3),
        (4, 2, True, 4),
        (2, 5, True, 7),
        (1, 6, True, 8),
        (0, 7, True, 9),
    ]


def test_a_block_is_in_its_slot_in_any_order_of_uses() -> None:
    numbers = random.Random(0)
    for count, slots in [(1, 2), (2, 2), (5, 2), (9, 3)]:
        contents = SlotContents(count, slots)
        for _ in range(300):
            number = numbers.randrange(count)
            pass_ = numbers.choice(["forward", "backward", "inference"])
            contents.begin(number, pass_)
            assert contents.has(number)
            if numbers.random() < 0.7:
                missing = contents.end(number, pass_)
                assert len({block % len(contents.blocks) for block in missing}) == len(missing)
            if numbers.random() < 0.1:
                contents.remove(number)
                assert not contents.has(number)
