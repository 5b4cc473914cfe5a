"""Ranges from the ratios of measured to predicted seconds, with the same weight for each source."""

from __future__ import annotations

import dataclasses
from statistics import NormalDist

import pytest

from shoestring.hardware.catalog import DEVICES
from shoestring.planning.estimate import spread as spreads
from shoestring.planning.estimate.spread import COVERAGE, SCORED, held_out_coverage, spread

T4 = DEVICES["t4"]
SOURCES = {name: ratios for sources in SCORED.values() for name, ratios in sources.items()}


def test_range_holds_most_ratios_of_a_source(monkeypatch: pytest.MonkeyPatch) -> None:
    many = tuple(2 ** NormalDist(0.2, 0.1).inv_cdf((number + 0.5) / 1000) for number in range(1000))
    monkeypatch.setattr(spreads, "SCORED", {"t4": {"many": many}})
    limits = spread(T4)
    inside = sum(limits.low <= ratio <= limits.high for ratio in many)
    assert inside == pytest.approx(1000 * COVERAGE, abs=5)
    assert (limits.low, limits.high) == pytest.approx((2**0.004, 2**0.396), rel=0.01)


def test_a_source_with_many_ratios_has_the_weight_of_one_with_few(monkeypatch: pytest.MonkeyPatch) -> None:
    centres = []
    for count in (1, 100):
        monkeypatch.setattr(spreads, "SCORED", {"t4": {"many": (1.0, 1.1) * count, "few": (0.7, 1.4)}})
        centres.append(spread(T4).low * spread(T4).high)
    assert centres[0] == pytest.approx(centres[1])


def test_sources_that_differ_widen_the_range(monkeypatch: pytest.MonkeyPatch) -> None:
    widths = []
    for second in ((0.95, 1.05), (1.25, 1.35)):
        monkeypatch.setattr(spreads, "SCORED", {"t4": {"first": (0.95, 1.05), "second": second}})
        widths.append(spread(T4).high / spread(T4).low)
    assert widths[1] > 1.5 * widths[0]


def test_student_quantiles_are_those_of_tables() -> None:
    quantiles = [spreads._student_quantile(0.975, freedom) for freedom in (4, 10, 30, float("inf"))]
    assert quantiles == pytest.approx([2.776, 2.228, 2.042, 1.960], rel=0.02)


def test_coverage_is_that_of_sources_left_out() -> None:
    assert held_out_coverage({"alone": (1.0, 1.1)}) is None
    # The first two lie in all ranges; one ratio of the third lies below theirs, and one above.
    sources = {"first": (0.99, 1.0, 1.01) * 5, "second": (0.98, 1.0, 1.02) * 5, "third": (0.5, 2.0)}
    assert held_out_coverage(sources) == pytest.approx(30 / 32)
    assert held_out_coverage(sources, high_end=True) == pytest.approx(31 / 32)


def test_high_end_holds_for_the_rows_of_sources_left_out() -> None:
    inside, below = held_out_coverage(SOURCES), held_out_coverage(SOURCES, high_end=True)
    assert inside is not None and inside >= COVERAGE
    assert below is not None and below >= COVERAGE
    assert f"{inside:.0%} of those of a source that is left out" in spread(T4).source


def test_predictions_from_timed_kernels_share_their_sources() -> None:
    assert spread(DEVICES["p100"]) == spread(DEVICES["v100"]) == spread(T4)
    assert spread(T4).names == tuple(SOURCES)
    assert spread(DEVICES["a100-80"]) == spread(T4)


def test_uncertain_rates_widen_the_range() -> None:
    timed, published, similar = (spread(DEVICES[name]) for name in ("t4", "rtx3090", "rtx3060"))
    assert timed.high < published.high < similar.high < 1.66 and published.high < 1.61
    assert timed.low > published.low > similar.low > 0.6
    assert "published rates" in published.source and "similar GPUs" in similar.source
    no_rates = dataclasses.replace(DEVICES["rtx3090"], bandwidth=None)
    assert "no measured update" in spread(no_rates).source


def test_a_range_does_not_use_an_excluded_source() -> None:
    every, without = spread(T4), spread(T4, "BERT-FineTuning")
    name = "nikhildinesharora/BERT-FineTuning-SQuAD-CUDA"
    assert name in every.source and name not in without.source
    assert set(every.names) - set(without.names) == {name}
    assert (every.low, every.high) != (without.low, without.high)


def test_a_range_without_any_source_is_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spreads, "SCORED", {"t4": {"alone": (1.0, 1.1)}})
    assert "unknown share" in spread(T4).source
    assert (spread(T4, "alone").low, spread(T4, "alone").high) == (0.5, 2.5)
