import pytest

from shoestring.answers.watch.curve import Curve


def curve(*points):
    result = Curve()
    for point in points:
        result.add(*point)
    return result


def test_columns_are_weighted_means_of_equal_ranges():
    assert curve((1, 4.0, 1), (2, 8.0, 3), (3, 1.0), (4, 3.0)).columns(2) == [7.0, 2.0]


def test_column_without_a_value_repeats_the_one_before_or_the_first():
    assert curve((2, 5.0), (6, 7.0)).columns(6) == [5.0, 5.0, 5.0, 5.0, 5.0, 7.0]


def test_value_without_weight_counts_alone():
    assert curve((1, 4.0, 0), (2, 6.0, 0)).columns(1) == [pytest.approx(5.0)]


def test_updates_after_a_cut_are_removed():
    values = curve((1, 1.0), (2, 2.0), (3, 3.0))
    values.cut(1)
    assert (len(values), values.last(), values.columns(1)) == (1, 1.0, [1.0])
    values.cut(0)
    assert (values.last(), values.columns(3)) == (None, [])
