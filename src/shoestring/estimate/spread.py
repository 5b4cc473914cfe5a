"""The spread of measured updates around predicted ones, which turns a prediction into a range."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shoestring.hardware.catalog import Device

COVERAGE = 0.95
"""The share of measured updates that a range is built to contain."""


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Factors on a prediction, and their source."""

    low: float
    high: float
    source: str


Ratios = tuple[float, ...]

SCORED: Mapping[str, Mapping[str, Ratios]] = {
    "t4": {
        "FitCheck-LLM": (
            0.82, 0.86, 0.89, 0.91, 0.91, 0.92, 0.93, 0.94, 0.94, 0.94, 0.95, 0.96, 0.96, 0.96, 0.97, 0.98, 0.99, 0.99,
            1.00, 1.00, 1.00, 1.01, 1.02, 1.02, 1.03, 1.03, 1.03, 1.04, 1.07, 1.07, 1.09, 1.09, 1.11, 1.12, 1.13, 1.14,
            1.15, 1.15, 1.16, 1.17, 1.17, 1.17, 1.22, 1.28, 1.29,
        ),
        "nikhildinesharora/BERT-FineTuning-SQuAD-CUDA": (
            0.74, 1.00, 1.02, 1.02, 1.05, 1.23,
        ),
        "petuum/adaptdl": (
            0.81, 0.83, 0.85, 0.85, 0.88, 0.88, 0.89, 0.89, 0.92, 0.93, 0.95, 0.96, 0.96, 1.01, 1.01, 1.02, 1.11, 1.14,
            1.17, 1.21, 1.22, 1.26, 1.27, 1.35,
        ),
        "Shakhtar-Sankur/tandem": (
            0.91, 0.93,
        ),
    },
    "p100": {
        "stanford-futuredata/gavel": (
            0.93, 1.07, 1.13, 1.27, 1.67, 1.71,
        ),
    },
}  # fmt: skip
"""Measured over predicted seconds, in ascending order, by device and source of measurements; each was predicted without
its source (`benchmarks/time/spread.py` prints them)."""

_UNSCORED = Spread(low=0.5, high=2.5, source="no measured update of this device was compared with a prediction")


def spread(device: Device, without: str | None = None) -> Spread:
    """Return the central 95% of all sources' ratios, excluding the sources whose name contains `without`.

    Of a GPU whose kernels were measured, but no update, it is that of a T4, whose predictions also come from timings of
    its kernels; the spread of the timings themselves widens it. A CPU's updates differ more from its kernels, for
    example by waiting for memory that is fresh from the system.
    """
    if device.measured and device.kind == "cpu":
        return _UNSCORED
    scored = SCORED.get("t4" if device.measured else device.name, {})
    sources = {name: ratios for name, ratios in scored.items() if not without or without not in name}
    if not sources:
        return _UNSCORED
    low, high = _limits(list(sources.values()))
    names = ", ".join(sources)
    if device.measured is not None:
        fastest, slowest = device.measured.noise
        return Spread(
            low=low * fastest,
            high=high * slowest,
            source=(
                f"no update was compared with these rates; that of a T4, scored on {names}, times the spread of the"
                f" timings ({fastest:.2f} to {slowest:.2f})"
            ),
        )
    coverage = held_out_coverage(sources)
    share = "an unknown share" if coverage is None else f"{coverage:.0%}"
    return Spread(
        low=low,
        high=high,
        source=(
            f"built to hold {COVERAGE:.0%} of the updates scored on {names}; so built from the others, it holds {share}"
            " of those of a source that is left out"
        ),
    )


def held_out_coverage(sources: Mapping[str, Ratios]) -> float | None:
    """Return the share of ratios that lie in the range of the other sources; None for a single source."""
    if len(sources) < 2:
        return None
    inside = total = 0
    for name, ratios in sources.items():
        low, high = _limits([values for other, values in sources.items() if other != name])
        inside += sum(low <= ratio <= high for ratio in ratios)
        total += len(ratios)
    return inside / total


def _limits(sources: Sequence[Ratios]) -> tuple[float, float]:
    """Return the quantiles between which `COVERAGE` of the ratios lie, where each source has the same weight.

    A source is one program on one machine, whose ratios have much in common: with one weight for each ratio, the range
    would be that of the source with the most.
    """
    weighted = sorted((ratio, 1 / len(ratios)) for ratios in sources for ratio in ratios)
    tail = (1 - COVERAGE) / 2 * len(sources)
    return _first_beyond(weighted, tail), _first_beyond(weighted[::-1], tail)


def _first_beyond(weighted: Sequence[tuple[float, float]], tail: float) -> float:
    """Return the first ratio at which the sum of the weights exceeds `tail`."""
    total = 0.0
    for ratio, weight in weighted:
        total += weight
        if total > tail:
            return ratio
    raise ValueError("there are no ratios")
