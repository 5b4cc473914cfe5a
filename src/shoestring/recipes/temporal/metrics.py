"""How good predictions of the three classes are, next to always saying the same."""

from typing import Any

import torch
from torch import Tensor
from torchmetrics.functional.classification import multiclass_accuracy, multiclass_f1_score

from shoestring.recipes.temporal.windows import CLASSES

_GROUPS = 50
"""At most; more would make the jackknife slower, not its answer better."""


def scores(predicted: Tensor, labels: Tensor, horizon: int) -> dict[str, Any]:
    """Accuracy and macro-F1 of `predicted` with their standard errors, and of always predicting the class that is most
    frequent in `labels`; counts by class. Which class that is only hindsight knows, so it is a hard one to beat.

    `predicted` and `labels` are classes in order of time, (n,) int64. Labels of neighbours share the bars of their
    `horizon`, so that 122 of them may be worth 15; the errors know that. A class that is neither predicted nor there
    does not count in macro-F1 (so it is in torchmetrics).
    """
    always = torch.full_like(labels, int(labels.bincount(minlength=len(CLASSES)).argmax()))
    return {
        **_scores("", predicted, labels),
        **_errors(predicted, labels, horizon),
        **_scores("majority_", always, labels),
        "classes": {
            name: {"true": int((labels == number).sum()), "predicted": int((predicted == number).sum())}
            for number, name in enumerate(CLASSES)
        },
    }


def _errors(predicted: Tensor, labels: Tensor, horizon: int) -> dict[str, float]:
    """Standard errors by the delete-a-group jackknife, each group at least `horizon` neighbours; none for few samples.

    Source: Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapter 11.
    """
    count = min(len(labels) // horizon, _GROUPS)
    if count < 2:
        return {}
    groups = torch.arange(len(labels)).tensor_split(count)
    left_out = []
    for group in groups:
        kept = torch.ones(len(labels), dtype=torch.bool, device=labels.device)
        kept[group[0] : group[-1] + 1] = False
        left_out.append(list(_scores("", predicted[kept], labels[kept]).values()))
    spread = torch.tensor(left_out, dtype=torch.float64).var(dim=0, correction=0)
    accuracy, macro_f1 = ((count - 1) * spread).sqrt().tolist()
    return {"accuracy_error": accuracy, "macro_f1_error": macro_f1}


def _scores(prefix: str, predicted: Tensor, labels: Tensor) -> dict[str, float]:
    count = len(CLASSES)
    return {
        f"{prefix}accuracy": float(multiclass_accuracy(predicted, labels, count, average="micro")),
        f"{prefix}macro_f1": float(multiclass_f1_score(predicted, labels, count, average="macro")),
    }
