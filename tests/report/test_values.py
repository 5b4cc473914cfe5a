import math

import pytest

from shoestring.report import values


def test_digging_ends_where_the_way_ends():
    assert values.dig({"a": {"b": 1}}, "a", "b") == 1
    assert values.dig({"a": {"b": 1}}, "a", "c", "d") is None
    assert values.dig([1], "a") is None


@pytest.mark.parametrize("other", [None, True, "1", "nan", math.nan, math.inf, [1]])
def test_only_finite_numbers_are_numbers(other):
    assert values.number(other) is None
    assert values.numbers({"x": other, "y": 2}) == {"y": 2.0}


def test_what_is_unknown_is_a_dash():
    said = [say(None) for say in (values.count, values.size, values.duration, values.moment, values.metric_text)]
    assert set(said) == {values.UNKNOWN}
    assert values.share(None, 1) == values.share(1, 0) == values.UNKNOWN


def test_a_name_says_the_unit():
    assert values.named("peak_bytes", 2**30) == "1.00 GiB"
    assert values.named("save_every_seconds", 90) == "1 min 30 s"
    assert values.named("micro_batch", 16) == "16"
    assert values.named("fits", True) == "yes"
    assert values.named("", {"free_bytes": 2**20, "sizes": [1, 2]}) == "free 1.00 MiB, sizes 1, 2"


def test_metrics_keep_four_digits():
    assert [values.metric_text(value) for value in (0.83764, 123456.7, "nan")] == ["0.8376", "123,457", "nan"]


def test_moments_are_utc():
    assert values.moment(1_760_000_000) == "2025-10-09 08:53 UTC"
