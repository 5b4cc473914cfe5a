"""Metrics of predictions of the three classes, next to the baseline of the most frequent class."""

from typing import Any

import torch
from torch import Tensor
from torchmetrics.functional.classification import multiclass_accuracy, multiclass_f1_score

from shoestring.recipe import evidence
from shoestring_recipes.temporal.windows import CLASSES

_MAX_GROUPS = 50
"""Largest number of groups of the jackknife; more would make it slower but not more accurate."""


def scores(predicted: Tensor, labels: Tensor, horizon: int) -> dict[str, Any]:
    """Return accuracy and macro-F1 of `predicted` with their standard errors, a baseline, counts by class, and
    as evidence the confusion matrix.

    The baseline always predicts the most frequent class of `labels`; it is hard to beat, because that class is known
    only in hindsight. `predicted` and `labels` are classes in order of time, (n,) int64. Neighbouring labels share the
    bars of their `horizon`, so 122 of them may carry the information of 15; the errors account for that. A class that
    is neither predicted nor true is left out of macro-F1, as in torchmetrics.
    """
    majority = torch.full_like(labels, int(labels.bincount(minlength=len(CLASSES)).argmax()))
    return {
        **_compute_scores("", predicted, labels),
        **_standard_errors(predicted, labels, horizon),
        **_compute_scores("majority_", majority, labels),
        "classes": {
            name: {"true": int((labels == number).sum()), "predicted": int((predicted == number).sum())}
            for number, name in enumerate(CLASSES)
        },
        evidence.KEY: {"confusion_matrix": evidence.confusion_matrix(labels, predicted, CLASSES)},
    }


def _standard_errors(predicted: Tensor, labels: Tensor, horizon: int) -> dict[str, float]:
    """Return standard errors from the delete-a-group jackknife; empty for too few samples.

    Each group has at least `horizon` neighbours.
    Source: Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapter 11.
    """
    count = min(len(labels) // horizon, _MAX_GROUPS)
    if count < 2:
        return {}
    groups = torch.arange(len(labels)).tensor_split(count)
    scores_without_group = []
    for group in groups:
        remaining = torch.ones(len(labels), dtype=torch.bool, device=labels.device)
        remaining[group[0] : group[-1] + 1] = False
        scores_without_group.append(list(_compute_scores("", predicted[remaining], labels[remaining]).values()))
    variance = torch.tensor(scores_without_group, dtype=torch.float64).var(dim=0, correction=0)
    accuracy, macro_f1 = ((count - 1) * variance).sqrt().tolist()
    return {"accuracy_error": accuracy, "macro_f1_error": macro_f1}


def _compute_scores(prefix: str, predicted: Tensor, labels: Tensor) -> dict[str, float]:
    count = len(CLASSES)
    return {
        f"{prefix}accuracy": float(multiclass_accuracy(predicted, labels, count, average="micro")),
        f"{prefix}macro_f1": float(multiclass_f1_score(predicted, labels, count, average="macro")),
    }
