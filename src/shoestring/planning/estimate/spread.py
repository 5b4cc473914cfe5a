"""The spread of measured updates around predicted ones, which turns a prediction into a range."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, pvariance, variance

from shoestring.hardware.catalog import Device
from shoestring.planning.estimate.rates import Basis, find_rates

COVERAGE = 0.95
"""The share of measured updates that a range is built to contain."""


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Factors on a prediction, and their source."""

    low: float
    high: float
    source: str
    names: tuple[str, ...] = ()
    """The sources of the updates that the factors come from."""


Ratios = tuple[float, ...]

SCORED: Mapping[str, Mapping[str, Ratios]] = {
    "t4": {
        "FitCheck-LLM": (
            0.82, 0.86, 0.89, 0.91, 0.91, 0.92, 0.93, 0.94, 0.94, 0.94, 0.95, 0.96, 0.96, 0.96, 0.97, 0.98, 0.99, 0.99,
            1.00, 1.00, 1.00, 1.01, 1.02, 1.02, 1.03, 1.03, 1.03, 1.04, 1.07, 1.07, 1.09, 1.09, 1.11, 1.12, 1.13, 1.14,
            1.15, 1.15, 1.16, 1.17, 1.17, 1.17, 1.22, 1.28, 1.29,
        ),
        "nikhildinesharora/BERT-FineTuning-SQuAD-CUDA": (
            1.00, 1.02, 1.02, 1.05, 1.09, 1.23,
        ),
        "petuum/adaptdl": (
            0.88, 0.88, 0.91, 0.94, 0.94, 0.95, 0.96, 0.96, 0.98, 0.98, 0.99, 0.99, 0.99, 1.00, 1.11, 1.11, 1.11, 1.17,
            1.18, 1.22, 1.22, 1.23, 1.24, 1.34,
        ),
        "Shakhtar-Sankur/tandem": (
            0.91, 0.93,
        ),
    },
    "p100": {
        "stanford-futuredata/gavel": (
            0.97, 1.05, 1.07, 1.14, 1.23, 1.32,
        ),
    },
}  # fmt: skip
"""Measured over predicted seconds, in ascending order, by device and source of measurements; each was predicted without
its source (`benchmarks/time/spread.py` prints them)."""

_UNSCORED = Spread(low=0.5, high=2.5, source="no measured update of this device was compared with a prediction")

_WITHOUT_KERNELS: Mapping[Basis, float] = {
    "timed": 0.0,
    "published": math.hypot(0.148, 0.121),
    "similar": math.hypot(0.153, 0.145),
}
"""The standard deviation of the logarithm that rates add which are not those of timed kernels. The first of each pair
is how far predictions by published rates are from those by timed kernels, for the six GPUs where both are possible; the
second how far publications of one GPU's 16-bit rate are apart, or the shares of similar GPUs. No measured update has a
part in them (`benchmarks/time/published.py` prints them)."""

_BASIS_TEXT: Mapping[Basis, str] = {
    "timed": "",
    "published": ", widened by the difference between published rates and timed kernels",
    "similar": ", widened by the difference between rates of similar GPUs and timed kernels",
}


def spread(device: Device, without: str | None = None) -> Spread:
    """Return the factors for `device`, excluding the sources whose name contains `without`.

    Predictions for all GPUs whose kernels others have timed are made in the same way, so all their sources are used
    together, and also for a GPU whose kernels were measured by `check --measure`; there the spread of the timings
    themselves widens the range. For other GPUs the uncertainty of their rates does. A CPU's updates differ more from
    its kernels, for example by waiting for memory that is fresh from the system.
    """
    rates = None if device.measured or device.kind == "cpu" else find_rates(device)
    if device.kind == "cpu" or not (device.measured or rates):
        return _UNSCORED
    scored = {name: ratios for sources in SCORED.values() for name, ratios in sources.items()}
    sources = {name: ratios for name, ratios in scored.items() if not without or without not in name}
    if not sources:
        return _UNSCORED
    low, high = _limits(list(sources.values()))
    listed = ", ".join(sources)
    if device.measured is not None:
        fastest, slowest = device.measured.noise
        return Spread(
            low=low * fastest,
            high=high * slowest,
            source=(
                f"no update was compared with these rates; that of updates scored on {listed}, times the spread of the"
                f" timings ({fastest:.2f} to {slowest:.2f})"
            ),
            names=tuple(sources),
        )
    basis = rates.basis if rates else "timed"
    low, high = (_widened(limit, _WITHOUT_KERNELS[basis]) for limit in (low, high))
    coverage = held_out_coverage(sources)
    share = "an unknown share" if coverage is None else f"{coverage:.0%}"
    return Spread(
        low=low,
        high=high,
        source=(
            f"built to hold {COVERAGE:.0%} of the updates scored on {listed}; so built from the others, it holds"
            f" {share} of those of a source that is left out{_BASIS_TEXT[basis]}"
        ),
        names=tuple(sources),
    )


def _widened(limit: float, deviation: float) -> float:
    """Return a limit that also holds a normal deviation of the logarithm, independent of the others."""
    logarithm = math.log(limit)
    reach = NormalDist().inv_cdf((1 + COVERAGE) / 2) * deviation
    return math.exp(math.copysign(math.hypot(logarithm, reach), logarithm))


def held_out_coverage(sources: Mapping[str, Ratios], *, high_end: bool = False) -> float | None:
    """Return the share of ratios that lie in the range of the other sources; None for a single source.

    With `high_end`, the share of those that are at most its high end.
    """
    if len(sources) < 2:
        return None
    inside = total = 0
    for name, ratios in sources.items():
        low, high = _limits([values for other, values in sources.items() if other != name])
        inside += sum((high_end or low <= ratio) and ratio <= high for ratio in ratios)
        total += len(ratios)
    return inside / total


def _limits(sources: Sequence[Ratios]) -> tuple[float, float]:
    """Return the factors between which `COVERAGE` of the ratios of a further source lie.

    A source is one program on one machine, whose ratios have much in common: their mean differs from that of other
    sources, and each from the mean. The logarithms of both are taken to have normal distributions, whose variances are
    estimated with the same weight for each source. Quantiles of the ratios themselves would never lie beyond the
    sources that there are.
    """
    logarithms = [[math.log(ratio) for ratio in ratios] for ratios in sources]
    means = [fmean(values) for values in logarithms]
    within = fmean(pvariance(values) for values in logarithms)
    between = variance(means) * (1 + 1 / len(means)) if len(means) > 1 else 0.0
    ratios = sum(map(len, sources))
    # Satterthwaite's degrees of freedom of a sum of two estimated variances.
    uncertainty = within**2 / max(1, ratios - len(means)) + between**2 / max(1, len(means) - 1)
    freedom = (within + between) ** 2 / uncertainty if uncertainty else math.inf
    reach = _student_quantile((1 + COVERAGE) / 2, freedom) * math.sqrt(within + between)
    return math.exp(fmean(means) - reach), math.exp(fmean(means) + reach)


def _student_quantile(probability: float, freedom: float) -> float:
    """Return the quantile of Student's t distribution by its expansion around the normal one (Abramowitz 26.7.5)."""
    normal = NormalDist().inv_cdf(probability)
    first, second = (normal**3 + normal) / 4, (5 * normal**5 + 16 * normal**3 + 3 * normal) / 96
    return normal + first / freedom + second / freedom**2
