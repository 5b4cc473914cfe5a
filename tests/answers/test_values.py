import math

import pytest

from shoestring.answers import values


def test_lookup_of_a_missing_key_is_none():
    assert values.lookup({"a": {"b": 1}}, "a", "b") == 1
    assert values.lookup({"a": {"b": 1}}, "a", "c", "d") is None
    assert values.lookup([1], "a") is None


@pytest.mark.parametrize("invalid", [None, True, "1", "nan", math.nan, math.inf, [1]])
def test_only_finite_numbers_are_numbers(invalid):
    assert values.number(invalid) is None
    assert values.numbers({"x": invalid, "y": 2}) == {"y": 2.0}


def test_unknown_values_are_dashes():
    formatters = (values.count, values.size, values.duration, values.timestamp, values.metric_text)
    assert {formatter(None) for formatter in formatters} == {values.UNKNOWN}
    assert values.share(None, 1) == values.share(1, 0) == values.UNKNOWN


def test_key_suffix_determines_the_unit():
    assert values.value_text("peak_bytes", 2**30) == "1.00 GiB"
    assert values.value_text("save_every_seconds", 90) == "1 min 30 s"
    assert values.value_text("micro_batch", 16) == "16"
    assert values.value_text("fits", True) == "yes"
    assert values.value_text("", {"free_bytes": 2**20, "sizes": [1, 2]}) == "free 1.00 MiB, sizes 1, 2"


def test_metrics_keep_four_digits():
    assert [values.metric_text(value) for value in (0.83764, 123456.7, "nan")] == ["0.8376", "123,457", "nan"]


def test_timestamps_are_utc():
    assert values.timestamp(1_760_000_000) == "2025-10-09 08:53 UTC"
