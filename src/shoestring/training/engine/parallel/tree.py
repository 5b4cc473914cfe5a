"""Sums in a fixed binary tree: ((0 + 1) + (2 + 3)), whose branches different processes can compute."""

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")

Sums = list[Tensor | None]
"""The sums of several tensors; None for one that has no term yet."""


class Tree(Generic[T]):
    """Adds a power of two of terms, in their order, as they are computed."""

    def __init__(self, add: Callable[[T, T], T]) -> None:
        self._add = add
        self._branches: list[tuple[int, T]] = []
        """The sums of complete branches with their heights, the largest first: one for each level at most."""

    def append(self, term: T) -> None:
        height = 0
        while self._branches and self._branches[-1][0] == height:
            term = self._add(self._branches.pop()[1], term)
            height += 1
        self._branches.append((height, term))

    @property
    def pending(self) -> list[T]:
        """The sums of complete branches, in the order in which the last term will be added to them."""
        return [total for _, total in reversed(self._branches)]

    def sum(self) -> T:
        """Return the sum of all terms."""
        ((_, total),) = self._branches
        return total


def tree_sum(values: Sequence[float]) -> float:
    """Return the sum of a power of two of values."""
    tree = Tree[float](lambda a, b: a + b)
    for value in values:
        tree.append(value)
    return tree.sum()


def add_tensors(first: Sums, second: Sums) -> Sums:
    """Add the tensors of `second` to those of `first`, in place."""
    pairs = [(a, b) for a, b in zip(first, second, strict=True) if a is not None and b is not None]
    if pairs:
        torch._foreach_add_([a for a, _ in pairs], [b for _, b in pairs])
    return [b if a is None else a for a, b in zip(first, second, strict=True)]
