"""Evidence: what an evaluation shows beyond the means of its metrics, as JSON which the report of a run draws.

A recipe returns it under the key `evidence` of its metrics, with any of these entries:

    confusion_matrix  labels (the n classes) and counts, n rows of n: counts[t][p] samples of class t predicted as p
    histograms        by metric: edges (n + 1, ascending) and counts (n) of the values of single samples
    samples           the samples with the worst values: rows {index, scores {metric: number}}
    examples          the best, the worst and random samples: rows {group (best, worst or random), index,
                      scores {metric: number}, texts {heading: text}}

`index` is the position of a sample in the evaluated data. Names of samples and images are added by the run, if the
recipe has `identify` and `illustrate`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

KEY = "evidence"
"""The key among the metrics that an evaluation returns."""

_BINS = 20
_MOST_SAMPLES = 100
_TEXT_CHARACTERS = 1000


def confusion_matrix(truth: Tensor, predicted: Tensor, labels: Sequence[str]) -> dict[str, Any]:
    """Count the true and predicted classes, both (n,) int64, as the entry `confusion_matrix`."""
    count = len(labels)
    counts = (truth * count + predicted).bincount(minlength=count * count).view(count, count)
    return {"labels": list(labels), "counts": counts.tolist()}


def histogram(values: Iterable[float]) -> dict[str, Any]:
    """Count the values in bins of equal width, as an entry of `histograms`; values that are not finite are left out."""
    finite = [value for value in values if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    width = (high - low) / _BINS
    if not width:
        return {"edges": [low, high], "counts": [len(finite)]}
    counts = [0] * _BINS
    for value in finite:
        counts[min(int((value - low) / width), _BINS - 1)] += 1
    return {"edges": [low + width * number for number in range(_BINS)] + [high], "counts": counts}


def worst_samples(quality: Sequence[float], scores: Mapping[str, Sequence[float]]) -> list[dict[str, Any]]:
    """Return the entry `samples`: those of the lowest quality, the lowest first; `scores` are their metrics by name."""
    order = sorted(range(len(quality)), key=lambda index: _rank(quality[index]))
    return [{"index": index, "scores": _scores_of(scores, index)} for index in order[:_MOST_SAMPLES]]


def examples(
    quality: Sequence[float],
    scores: Mapping[str, Sequence[float]],
    *,
    texts: Mapping[str, Sequence[str]] | None = None,
    count: int = 3,
) -> list[dict[str, Any]]:
    """Return the entry `examples`: `count` samples each of the highest and the lowest quality, and as many of the rest
    at random, the same in every evaluation unless they are among the best or the worst.

    `scores` are the metrics and `texts` the texts of all samples by name.
    """
    order = sorted(range(len(quality)), key=lambda index: _rank(quality[index]), reverse=True)
    best = order[: min(count, -(-len(order) // 2))]
    worst = order[len(best) :][-count:]
    shuffled = random.Random(0).sample(range(len(order)), len(order))
    random_indices = [index for index in shuffled if index not in {*best, *worst}][:count]
    groups = [*(("best", index) for index in best), *(("worst", index) for index in reversed(worst))]
    return [
        {
            "group": group,
            "index": index,
            "scores": _scores_of(scores, index),
            "texts": {name: _shortened(values[index]) for name, values in (texts or {}).items()},
        }
        for group, index in [*groups, *(("random", index) for index in sorted(random_indices))]
    ]


def _scores_of(scores: Mapping[str, Sequence[float]], index: int) -> dict[str, float]:
    return {name: float(values[index]) for name, values in scores.items()}


def _rank(value: float) -> float:
    """Return a value to sort by; NaN is the worst."""
    return -math.inf if math.isnan(value) else value


def _shortened(text: str) -> str:
    return text if len(text) <= _TEXT_CHARACTERS else f"{text[:_TEXT_CHARACTERS]} \N{HORIZONTAL ELLIPSIS}"
