"""How good predictions of the three classes are, next to always saying the same."""

from typing import Any

import torch
from torch import Tensor
from torchmetrics.functional.classification import multiclass_accuracy, multiclass_f1_score

from shoestring.recipes.temporal.windows import CLASSES


def scores(predicted: Tensor, labels: Tensor, majority: int) -> dict[str, Any]:
    """Accuracy and macro-F1 of `predicted` and of always predicting the class `majority`; counts by class.

    `predicted` and `labels` are classes, (n,) int64. A class that is neither predicted nor there does not count in
    macro-F1 (so it is in torchmetrics).
    """
    always = torch.full_like(labels, majority)
    return {
        **_scores("", predicted, labels),
        **_scores("majority_", always, labels),
        "classes": {
            name: {"true": int((labels == number).sum()), "predicted": int((predicted == number).sum())}
            for number, name in enumerate(CLASSES)
        },
    }


def _scores(prefix: str, predicted: Tensor, labels: Tensor) -> dict[str, float]:
    count = len(CLASSES)
    return {
        f"{prefix}accuracy": float(multiclass_accuracy(predicted, labels, count, average="micro")),
        f"{prefix}macro_f1": float(multiclass_f1_score(predicted, labels, count, average="macro")),
    }
