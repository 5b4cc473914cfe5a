"""Prices: sources and dates, unknown prices, and prices and limits set by the user."""

from datetime import date

import pytest

from shoestring.hardware import targets
from shoestring.hardware.catalog import DEVICES, PLATFORMS
from shoestring.hardware.prices import FREE, PRICES, price


@pytest.mark.parametrize("name", PRICES)
def test_prices_have_source_and_date(name):
    listed = PRICES[name]
    assert name in DEVICES
    assert listed.source.startswith("https://")
    assert date.fromisoformat(listed.date)
    assert 0.05 < listed.usd_per_hour < 20


def test_platforms_are_free_and_other_prices_unknown():
    assert FREE.keys() == PLATFORMS.keys()
    assert price(targets.find("kaggle-t4x2")).usd_per_hour == 0
    assert price(targets.find("t4")) is None
    assert price(targets.find("t4"), 0.35).usd_per_hour == 0.35


def test_given_limits_replace_those_of_the_platform():
    target = targets.with_limits(targets.find("kaggle-t4"), session_seconds=1800, disk_bytes=10**9)
    assert (target.platform.session_hours, target.platform.disk_bytes) == (0.5, 10**9)
    assert target.platform.weekly_gpu_hours == 30
    assert price(target).usd_per_hour == 0
    bare = targets.with_limits(targets.find("a100-80"), session_seconds=3600)
    assert bare.platform.session_hours == 1
    assert price(bare) == PRICES["a100-80"]
    assert targets.with_limits(bare) is bare
