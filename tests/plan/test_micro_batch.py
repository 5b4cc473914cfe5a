"""Microbatches of an effective batch, and how the largest that fits is found."""

import pytest

from shoestring.errors import UsageError
from shoestring.plan.micro_batch import bytes_at, largest_that_fits, micro_batches
from shoestring.settings import Settings
from tests.plan.made_candidates import GIB, Made, per_sample

WANTED = Settings(precision="fp16", checkpointing="no")


def test_microbatches_are_as_equal_as_possible_and_each_number_of_them_has_one():
    assert micro_batches(9) == [1, 2, 3, 5, 9]
    assert micro_batches(9, least=2) == [2, 3, 5, 9]
    assert micro_batches(1, least=2) == [1]
    assert micro_batches(64)[-4:] == [16, 22, 32, 64]


def sizes_of(series):
    return [each.settings.micro_batch for each in series.followed]


def test_a_heavy_model_is_followed_from_its_smallest_microbatch():
    light, heavy = (Made(bytes_of=per_sample(0.5), weights=weights) for weights in (GIB, 5 * GIB))
    assert sizes_of(largest_that_fits(light, WANTED, micro_batches(64))) == [64, 22]
    assert sizes_of(largest_that_fits(heavy, WANTED, micro_batches(64))) == [1, 22]


def test_what_does_not_fit_is_part_of_the_series_too():
    series = largest_that_fits(Made(bytes_of=lambda s: 99 * GIB), WANTED, [1, 2, 4])
    assert series.largest is None
    assert sizes_of(series) == [4, 1]


def test_what_the_recipe_cannot_have_ends_the_series():
    def bytes_of(settings):
        if settings.micro_batch == 22:
            raise UsageError("22 are not possible")
        return per_sample(0.5)(settings)

    for weights, first in ((GIB, 64), (5 * GIB, 1)):
        series = largest_that_fits(Made(bytes_of=bytes_of, weights=weights), WANTED, micro_batches(64))
        assert series.largest is None  # though 1 fits
        assert sizes_of(series) == [first]


def test_memory_is_on_a_line_through_the_two_nearest_or_in_proportion_to_one():
    made = Made(bytes_of=lambda s: (4 + s.micro_batch if s.micro_batch < 10 else 99) * GIB)
    two, four, whole = (made.follow(WANTED.replace(micro_batch=size)) for size in (2, 4, 64))
    assert bytes_at(3, [whole, four, two]) == pytest.approx(7 * GIB)
    assert bytes_at(8, [two]) == pytest.approx(4 * 6 * GIB)  # all of it is activations
