"""How many blocks are on the first of two GPUs."""

import pytest

from shoestring.techniques.pipeline.split import first_blocks


@pytest.mark.parametrize(
    ("sizes", "before", "after", "expected"),
    [
        ([1] * 6, 0, 0, 3),
        ([1] * 5, 0, 0, 2),  # of equal divisions the one with the smaller first part
        ([1] * 6, 2, 0, 2),  # an embedding
        ([1] * 6, 2, 2, 3),  # and a head that is not tied to it
        ([1] * 6, 9, 0, 1),  # each part has a block
        ([1] * 6, 0, 9, 5),
        ([5, 1, 1, 1], 0, 0, 1),
        ([1, 1], 0, 0, 1),
    ],
)
def test_the_larger_part_is_as_small_as_possible(sizes, before, after, expected):
    assert first_blocks(sizes, before, after) == expected


def test_one_block_cannot_be_divided():
    with pytest.raises(ValueError, match="1 blocks"):
        first_blocks([4])
