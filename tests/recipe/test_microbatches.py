import random

import pytest

from shoestring.recipe.microbatches import flattened, longest_first, pack, split


def test_best_fit_fills_the_fullest_row_with_room() -> None:
    lengths = [5, 7, 3, 4, 2]
    rows = pack(longest_first(range(5), lengths.__getitem__), lengths.__getitem__, 10)
    # 7 opens a row, 5 another; 4 fits only beside 5; 3 fills the first; 2 opens a third.
    assert rows == [(1, 2), (0, 3), (4,)]


def test_every_sample_is_in_one_row_within_the_capacity() -> None:
    draw = random.Random(0)
    for _ in range(50):
        lengths = [draw.randint(1, 60) for _ in range(draw.randint(1, 40))]
        rows = pack(longest_first(range(len(lengths)), lengths.__getitem__), lengths.__getitem__, 50)
        assert sorted(flattened(rows)) == list(range(len(lengths)))
        assert all(sum(lengths[index] for index in row) <= 50 or len(row) == 1 for row in rows)
        # No two rows would fit into one, or best fit would have put their samples together.
        sums = sorted(sum(lengths[index] for index in row) for row in rows)
        assert len(sums) < 2 or sums[0] + sums[1] > 50


def test_split_is_as_equal_as_possible() -> None:
    assert [len(part) for part in split(range(64), 7)] == [7, 7, 7, 7, 6, 6, 6, 6, 6, 6]
    assert split([], 4) == []


@pytest.mark.parametrize("members", [[(1, 2), (3,)], [1, 2, 3]])
def test_flattened(members: list[int]) -> None:
    assert flattened(members) == [1, 2, 3]
