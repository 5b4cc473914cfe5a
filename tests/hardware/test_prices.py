"""Every price has a source and a day; what nobody knows is unknown, and what is given counts."""

from datetime import date

import pytest

from shoestring.hardware import targets
from shoestring.hardware.catalog import DEVICES, PLATFORMS
from shoestring.hardware.prices import FREE, PRICES, price


@pytest.mark.parametrize("name", PRICES)
def test_each_has_a_source_and_a_day(name):
    found = PRICES[name]
    assert name in DEVICES
    assert found.source.startswith("https://")
    assert date.fromisoformat(found.date)
    assert 0.05 < found.usd_per_hour < 20


def test_platforms_are_free_and_the_unknown_is_unknown():
    assert FREE.keys() == PLATFORMS.keys()
    assert price(targets.find("kaggle-t4x2")).usd_per_hour == 0
    assert price(targets.find("t4")) is None
    assert price(targets.find("t4"), 0.35).usd_per_hour == 0.35


def test_limits_that_are_given_replace_the_platform_s_and_leave_the_rest():
    target = targets.under(targets.find("kaggle-t4"), session_seconds=1800, disk_bytes=10**9)
    assert (target.platform.session_hours, target.platform.disk_bytes) == (0.5, 10**9)
    assert target.platform.weekly_gpu_hours == 30
    assert price(target).usd_per_hour == 0
    bare = targets.under(targets.find("a100-80"), session_seconds=3600)
    assert bare.platform.session_hours == 1
    assert price(bare) == PRICES["a100-80"]
    assert targets.under(bare) is bare
