"""How far measured updates are from predicted ones: what makes a prediction a range."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shoestring.hardware.catalog import Device


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Factors on a prediction, and what says so."""

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
"""By device and source of measurements: the 5th and 95th percentile of measured over predicted
(`benchmarks/time/score.py`)."""

_UNSCORED = Spread(low=0.5, high=2.5, source="no measured update of this GPU was predicted")


def spread(device: Device, without: str | None = None) -> Spread:
    """The widest of what the sources show, all but those whose name has the word `without`."""
    found = {name: ends for name, ends in SCORED.get(device.name, {}).items() if not without or without not in name}
    if not found:
        return _UNSCORED
    lows, highs = zip(*found.values(), strict=True)
    return Spread(low=min(lows), high=max(highs), source=f"scored on {', '.join(found)}")
