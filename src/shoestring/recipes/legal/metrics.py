"""How good predicted roles are, role by role and over all, next to always naming the most frequent one."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def scores(predicted: Tensor, truth: Tensor, roles: Sequence[str]) -> dict[str, Any]:
    """Of `predicted` and `truth`, (sentences,) int64: `accuracy`, `weighted_f1` (each role by how often it is there),
    `macro_f1` (all alike), the same of the majority, and `classes` by name.

    A role that is neither there nor predicted does not count in macro-F1, and 0/0 is 0 (so it is in scikit-learn).
    """
    always = torch.full_like(truth, int(truth.bincount(minlength=len(roles)).argmax()))
    means, own = _scores(predicted, truth, roles)
    return {
        **means,
        **{f"majority_{name}": value for name, value in _scores(always, truth, roles)[0].items()},
        "classes": own,
    }


def _scores(
    predicted: Tensor, truth: Tensor, roles: Sequence[str]
) -> tuple[dict[str, float], dict[str, dict[str, Any]]]:
    count = len(roles)
    table = (truth * count + predicted).bincount(minlength=count * count).view(count, count).double()
    right, there, named = table.diagonal(), table.sum(1), table.sum(0)
    precision, recall = right / named.clamp(min=1), right / there.clamp(min=1)
    f1 = 2 * right / (there + named).clamp(min=1)
    means = {
        "accuracy": float(right.sum() / there.sum()),
        "weighted_f1": float((f1 * there).sum() / there.sum()),
        "macro_f1": float(f1[(there + named) > 0].mean()),
    }
    own = {
        name: {
            "true": int(there[number]),
            "predicted": int(named[number]),
            "precision": float(precision[number]),
            "recall": float(recall[number]),
            "f1": float(f1[number]),
        }
        for number, name in enumerate(roles)
    }
    return means, own
