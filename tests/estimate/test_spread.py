"""Ranges from the ratios of measured to predicted seconds, with the same weight for each source."""

from __future__ import annotations

import pytest

from shoestring.estimate import spread as spreads
from shoestring.estimate.spread import COVERAGE, SCORED, held_out_coverage, spread
from shoestring.hardware.catalog import DEVICES

T4 = DEVICES["t4"]


def test_range_holds_most_ratios_of_each_source(monkeypatch: pytest.MonkeyPatch) -> None:
    many = tuple(1 + number / 1000 for number in range(100))
    monkeypatch.setattr(spreads, "SCORED", {"t4": {"many": many}})
    limits = spread(T4)
    inside = sum(limits.low <= ratio <= limits.high for ratio in many)
    assert inside == pytest.approx(100 * COVERAGE, abs=1)
    assert (limits.low, limits.high) == pytest.approx((1.002, 1.097))


def test_a_source_with_many_ratios_has_the_weight_of_one_with_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spreads, "SCORED", {"t4": {"many": (1.0,) * 100, "few": (0.7, 1.4)}})
    limits = spread(T4)
    assert (limits.low, limits.high) == (0.7, 1.4)


def test_coverage_is_that_of_sources_left_out() -> None:
    assert held_out_coverage({"alone": (1.0, 1.1)}) is None
    # 1.0 and 1.1 lie in the range of the second, whose 0.9 and 1.2 do not lie in that of the first.
    assert held_out_coverage({"first": (1.0, 1.1), "second": (0.9, 1.0, 1.2)}) == pytest.approx(3 / 5)


def test_the_coverage_is_told() -> None:
    held = held_out_coverage(SCORED["t4"])
    assert held is not None and held >= 0.9
    assert f"{held:.0%} of those of a source that is left out" in spread(T4).source
    assert "unknown share" in spread(DEVICES["p100"]).source


def test_a_range_does_not_use_an_excluded_source() -> None:
    every, without = spread(T4), spread(T4, "BERT-FineTuning")
    assert "BERT-FineTuning" in every.source and "BERT-FineTuning" not in without.source
    assert every.low < without.low
    assert "no measured update" in spread(DEVICES["l4"]).source
