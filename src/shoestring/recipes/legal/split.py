"""Parts of the judgments: never sentences of one in two parts, and the same parts whatever the run's seed."""

from collections.abc import Mapping, Sequence

import numpy as np

from shoestring.errors import DataError
from shoestring.recipes.legal.documents import Document
from shoestring.recipes.temporal import split as by_time

HELD_OUT = 0.1
"""Of the judgments, for validation and again for the test; without a file's own parts or folds."""


def divided(found: Mapping[str, Sequence[Document]], fold: str | None) -> dict[str, list[Document]]:
    """`train`, `validation` and `test`, as far as there are: as the files have them, by `fold`, or 80/10/10 %.

    Fold k/n tests on the k-th of n equal shares of the judgments; of the others a tenth validates. `all` holds nothing
    out: everything is `train`.
    Raises DataError where there are too few judgments, or folds of data that has its parts already.
    """
    if fold == "all":
        return {"train": [one for documents in found.values() for one in documents]}
    if "all" not in found:
        parts = {name: list(documents) for name, documents in found.items() if documents}
        if fold is not None:
            raise DataError(f"fold={fold}: the files are train, validation and test already", hint="fold=none")
        if "validation" not in parts:
            parts["train"], parts["validation"] = _apart(parts.get("train", []), _tenth(len(parts.get("train", []))))
        return parts
    documents = _shuffled(found["all"])
    if fold is None:
        rest, test = _apart(documents, _tenth(len(documents)))
    else:
        k, n = map(int, fold.split("/"))
        if n < 2 or n > len(documents):
            raise DataError(f"fold={fold}: there are {len(documents)} judgments", hint="from 2 to as many folds")
        test = documents[k - 1 :: n]
        rest = [one for number, one in enumerate(documents) if number % n != k - 1]
    train, validation = _apart(rest, _tenth(len(documents)) if fold is None else _tenth(len(rest)))
    return {"train": train, "validation": validation, "test": test}


def is_fold(text: str) -> bool:
    """Whether `text` is like `3/5`, the third of five folds, or `all`."""
    return text == "all" or by_time.is_fold(text)


def _shuffled(documents: Sequence[Document]) -> list[Document]:
    """In an order that depends on their number alone; that stream of NumPy never changes."""
    return [documents[index] for index in np.random.RandomState(0).permutation(len(documents))]


def _tenth(count: int) -> int:
    return max(1, round(HELD_OUT * count))


def _apart(documents: Sequence[Document], count: int) -> tuple[list[Document], list[Document]]:
    """All but the last `count`, and these."""
    if len(documents) <= count:
        raise DataError(
            f"{len(documents)} judgments are too few to train, validate and test on",
            hint="a blank line ends a judgment; or give folders train, validation and test",
        )
    return list(documents[:-count]), list(documents[-count:])
