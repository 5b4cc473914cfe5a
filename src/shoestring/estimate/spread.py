"""The spread of measured updates around predicted ones, which turns a prediction into a range."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shoestring.hardware.catalog import Device


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Factors on a prediction, and their source."""

    low: float
    high: float
    source: str


SCORED: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "t4": {
        "FitCheck-LLM": (0.88, 1.32),
        "petuum/adaptdl": (0.83, 1.29),
        "nikhildinesharora/BERT-FineTuning-SQuAD-CUDA": (0.73, 1.21),
        "Shakhtar-Sankur/tandem": (0.94, 0.96),
    },
    "p100": {"stanford-futuredata/gavel": (0.92, 1.71)},
}
"""The 5th and 95th percentile of measured over predicted seconds, by device and source of measurements
(`benchmarks/time/score.py`)."""

_UNSCORED = Spread(low=0.5, high=2.5, source="no measured update of this GPU was compared with a prediction")


def spread(device: Device, without: str | None = None) -> Spread:
    """Return the widest spread of the sources, excluding those whose name contains `without`.

    Of a device whose kernels were measured, but no update, it is that of a T4, whose predictions also come from timings
    of its kernels; the spread of the timings themselves widens it.
    """
    measured = device.measured
    scored = SCORED.get("t4" if measured else device.name, {})
    sources = {name: limits for name, limits in scored.items() if not without or without not in name}
    if not sources:
        return _UNSCORED
    lows, highs = zip(*sources.values(), strict=True)
    if measured is None:
        return Spread(low=min(lows), high=max(highs), source=f"scored on {', '.join(sources)}")
    fastest, slowest = measured.noise
    return Spread(
        low=min(lows) * fastest,
        high=max(highs) * slowest,
        source=f"no update was compared with these rates; that of a T4, scored on {', '.join(sources)}, times the "
        f"spread of the timings ({fastest:.2f} to {slowest:.2f})",
    )
