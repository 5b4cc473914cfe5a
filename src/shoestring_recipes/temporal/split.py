"""Splitting the data by time: train, then validation, then test."""

from itertools import pairwise

import numpy as np

PARTS = ("train", "validation", "test")
SHARES = (0.70, 0.15, 0.15)


def shares(fold: str | None) -> tuple[float, ...]:
    """Return the share of the time in each of `PARTS`, in order.

    Without `fold`, 70 % train, 15 % validation, 15 % test. Fold k/n is a step of a walk-forward validation with an
    expanding window: of n + 2 equal blocks, the first k are for training, the next for validation, the one after for
    testing. Every test block is later than all training data of its model, and no two folds share a test block.
    `windows.last_bars` removes samples whose sequence or label would cross a border.
    """
    if fold is None:
        return SHARES
    k, n = map(int, fold.split("/"))
    return k / (n + 2), 1 / (n + 2), 1 / (n + 2)


def borders(moments: int, fold: str | None) -> list[tuple[int, int]]:
    """Return for each of `PARTS` its first of the `moments` in time, and the first one after its end."""
    edges = [round(share * moments) for share in np.cumsum((0.0, *shares(fold)))]
    return list(pairwise(edges))
