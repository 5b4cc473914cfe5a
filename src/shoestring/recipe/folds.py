"""Cross-validation: the option `fold`, and the division of the training data by the engine.

A recipe that has an option `fold` of its own divides its data itself, and gets the option in its own form: the text
`3/5`, or with an option of the type int the number 2, from 0, and 5 in its option `folds`, if it has that one.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from shoestring.base.config import Field
from shoestring.base.errors import UsageError
from shoestring.recipe.subset import Subset

MOST_FOLDS = 100
_SEED = 0
"""The division is the same for every seed of a run, so that models of several seeds are held out from the same samples.
"""


@dataclass(frozen=True, kw_only=True)
class FoldOption:
    """The option of every recipe that does not divide its data itself."""

    fold: Annotated[
        str | None,
        "trains on all folds of the training data but one, which is the validation part: 3/5 is the third of five; "
        "none: the parts of data()",
    ] = None
    """The samples of a fold are the same in every session and for every seed; they are stratified by `label` and keep
    samples of a `group` together if the recipe has these parts. `train --folds 5` trains all five."""


@dataclass(frozen=True)
class Fold:
    """One fold of several, by its number from 1."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Fold:
        """Read a text such as `3/5`. Raises ValueError."""
        match = re.fullmatch(r"([1-9]\d{0,2})/([1-9]\d{0,2})", text)
        if match is None or not 2 <= int(match[2]) <= MOST_FOLDS or int(match[1]) > int(match[2]):
            raise ValueError(f"must be like 3/5, the third of five folds, of 2 to {MOST_FOLDS}")
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


def all_folds(count: int) -> list[Fold]:
    """Return all of so many folds. Raises UsageError if there cannot be so many."""
    if not 2 <= count <= MOST_FOLDS:
        raise UsageError(f"{count} folds are not possible", hint=f"use 2 to {MOST_FOLDS}, such as 5")
    return [Fold(number, count) for number in range(1, count + 1)]


def values_of(fold: Fold, own: Mapping[str, Field]) -> dict[str, object]:
    """Return the options that select a fold for a recipe whose own options are `own`."""
    if "fold" in own and str not in own["fold"].types:
        return {"fold": fold.number - 1, **({"folds": fold.count} if "folds" in own else {})}
    return {"fold": str(fold)}


def divide(
    parts: Mapping[str, Any],
    fold: Fold,
    *,
    indices: Sequence[int],
    label: Callable[[int], Hashable] | None = None,
    group: Callable[[int], Hashable] | None = None,
    unaugmented: Callable[[Any], Any] | None = None,
) -> dict[str, Any]:
    """Return the parts of the data with one fold of the training samples `indices` as the validation part.

    Raises UsageError if there are too few samples or groups.
    """
    dataset = parts["train"]
    held_out = choose_fold(indices, fold, label=label, group=group)
    is_held_out = set(held_out)
    evaluated = dataset if unaugmented is None else unaugmented(dataset)
    if len(evaluated) != len(dataset):
        raise UsageError(
            f"unaugmented(dataset) returned {len(evaluated)} samples for a dataset of {len(dataset)}",
            hint="return a dataset with the same samples at the same indices",
        )
    validation = Subset(evaluated, held_out)
    validation.replaces = len(parts.get("validation", ()))
    training = Subset(dataset, [index for index in indices if index not in is_held_out])
    return {**parts, "train": training, "validation": validation}


def choose_fold(
    indices: Sequence[int],
    fold: Fold,
    *,
    label: Callable[[int], Hashable] | None = None,
    group: Callable[[int], Hashable] | None = None,
) -> list[int]:
    """Choose the samples of one fold, in rising order. Together the folds have each sample once.

    Without groups, the sizes of the folds differ by at most one, and so do their counts of each label. With groups,
    the largest ones are dealt first, each to the fold where the labels are, or else the samples, rarest.

    Raises UsageError if there are fewer samples or groups than folds.
    """
    import numpy as np

    # The stream of RandomState never changes; that of newer generators may change between versions of NumPy.
    order = [indices[position] for position in np.random.RandomState(_SEED).permutation(len(indices)).tolist()]
    members: dict[Hashable, list[int]] = defaultdict(list)
    for index in order:
        members[index if group is None else group(index)].append(index)
    if len(members) < fold.count:
        raise UsageError(
            f"fold={fold}: the training data has {len(members)} {'samples' if group is None else 'groups'}",
            hint="use fewer folds",
        )
    if group is None:
        by_label: dict[Hashable, list[int]] = defaultdict(list)
        for index in order:
            by_label[None if label is None else label(index)].append(index)
        dealt = [index for same in by_label.values() for index in same]
        return sorted(dealt[fold.number - 1 :: fold.count])
    return sorted(_deal_groups(list(members.values()), fold, label))


def _deal_groups(groups: list[list[int]], fold: Fold, label: Callable[[int], Hashable] | None) -> list[int]:
    counts = [Counter(None if label is None else label(index) for index in members) for members in groups]
    totals: Counter[Hashable] = Counter()
    for count in counts:
        totals += count
    dealt: list[Counter[Hashable]] = [Counter() for _ in range(fold.count)]
    chosen: list[int] = []
    for position in sorted(range(len(groups)), key=lambda position: -len(groups[position])):
        count = counts[position]

        def crowding(number: int, count: Counter[Hashable] = count) -> tuple[float, int, int]:
            same = sum(dealt[number][name] * amount / totals[name] ** 2 for name, amount in count.items())
            return same, dealt[number].total(), number

        number = min(range(fold.count), key=crowding)
        dealt[number] += count
        if number == fold.number - 1:
            chosen += groups[position]
    return chosen
