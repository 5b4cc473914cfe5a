"""Parts of the data in time: train, then validation, then test."""

import re
from itertools import pairwise

import numpy as np

PARTS = ("train", "validation", "test")
SHARES = (0.70, 0.15, 0.15)


def is_fold(text: str) -> bool:
    """Whether `text` is like `3/5`, the third of five folds."""
    found = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", text)
    return found is not None and int(found[1]) <= int(found[2])


def shares(fold: str | None) -> tuple[float, ...]:
    """The share of the time that each of `PARTS` has, from the beginning on.

    Without `fold`, 70 % train, 15 % validation, 15 % test. Fold k/n is a step of a walk forward with an expanding
    window: of n + 2 equal blocks, the first k train, the next validates, the one after tests. So every test block
    lies after all that its model has seen, and no two folds test the same block. `windows.last_bars` purges what would
    reach across a border with its sequence or its label.
    """
    if fold is None:
        return SHARES
    k, n = map(int, fold.split("/"))
    return k / (n + 2), 1 / (n + 2), 1 / (n + 2)


def borders(moments: int, fold: str | None) -> list[tuple[int, int]]:
    """For each of `PARTS`, the first of so many `moments` in time that belongs to it and the first that does not."""
    edges = [round(share * moments) for share in np.cumsum((0.0, *shares(fold)))]
    return list(pairwise(edges))
