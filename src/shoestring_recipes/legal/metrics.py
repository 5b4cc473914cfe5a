"""Metrics of predicted roles, for each role and overall, next to the baseline of the most frequent role."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def scores(predicted: Tensor, truth: Tensor, roles: Sequence[str]) -> dict[str, Any]:
    """Return metrics of `predicted` against `truth`, both (sentences,) int64.

    `accuracy`, `weighted_f1` (roles weighted by frequency) and `macro_f1` (equal weights); the same prefixed with
    `majority_` for always predicting the most frequent role of `truth`; and `classes` by name. A role that is neither
    true nor predicted is left out of macro-F1, and 0/0 is 0, as in scikit-learn.
    """
    majority = torch.full_like(truth, int(truth.bincount(minlength=len(roles)).argmax()))
    means, classes = _compute_scores(predicted, truth, roles)
    return {
        **means,
        **{f"majority_{name}": value for name, value in _compute_scores(majority, truth, roles)[0].items()},
        "classes": classes,
    }


def _compute_scores(
    predicted: Tensor, truth: Tensor, roles: Sequence[str]
) -> tuple[dict[str, float], dict[str, dict[str, Any]]]:
    count = len(roles)
    table = (truth * count + predicted).bincount(minlength=count * count).view(count, count).double()
    correct, true, named = table.diagonal(), table.sum(1), table.sum(0)
    precision, recall = correct / named.clamp(min=1), correct / true.clamp(min=1)
    f1 = 2 * correct / (true + named).clamp(min=1)
    means = {
        "accuracy": float(correct.sum() / true.sum()),
        "weighted_f1": float((f1 * true).sum() / true.sum()),
        "macro_f1": float(f1[(true + named) > 0].mean()),
    }
    classes = {
        name: {
            "true": int(true[number]),
            "predicted": int(named[number]),
            "precision": float(precision[number]),
            "recall": float(recall[number]),
            "f1": float(f1[number]),
        }
        for number, name in enumerate(roles)
    }
    return means, classes
