"""Splitting judgments into parts: all sentences of a judgment in one part, independently of the run's seed."""

from collections.abc import Mapping, Sequence

import numpy as np

from shoestring.base.errors import DataError
from shoestring_recipes.folds import is_fold as is_numbered_fold
from shoestring_recipes.legal.documents import Document

HELD_OUT = 0.1
"""Share of the judgments for validation, and again for the test, unless files or folds define the parts."""


def split_documents(documents_by_part: Mapping[str, Sequence[Document]], fold: str | None) -> dict[str, list[Document]]:
    """Return `train`, `validation` and `test`: the parts of the files, those of `fold`, or 80/10/10 %.

    Fold k/n tests on the k-th of n equal shares of the judgments and validates on a tenth of the others. With `all`,
    all judgments are in `train` and there is no other part.

    Raises DataError for too few judgments, or for a fold of data with its own parts.
    """
    if fold == "all":
        return {"train": [document for documents in documents_by_part.values() for document in documents]}
    if "all" not in documents_by_part:
        parts = {name: list(documents) for name, documents in documents_by_part.items() if documents}
        if fold is not None:
            raise DataError(f"fold={fold}: the files already define train, validation and test", hint="--set fold=none")
        if "validation" not in parts:
            train = parts.get("train", [])
            parts["train"], parts["validation"] = _split_off(train, _held_out_count(len(train)))
        return parts
    documents = _shuffle(documents_by_part["all"])
    if fold is None:
        remaining, test = _split_off(documents, _held_out_count(len(documents)))
    else:
        k, n = map(int, fold.split("/"))
        if n < 2 or n > len(documents):
            raise DataError(
                f"fold={fold}: there are {len(documents)} judgments",
                hint="use 2 folds or more, and no more than judgments",
            )
        test = documents[k - 1 :: n]
        remaining = [document for number, document in enumerate(documents) if number % n != k - 1]
    validation_count = _held_out_count(len(documents) if fold is None else len(remaining))
    train, validation = _split_off(remaining, validation_count)
    return {"train": train, "validation": validation, "test": test}


def part_shares(fold: str | None) -> dict[str, float]:
    """Return the share of the judgments in each part of data that do not define them."""
    if fold == "all":
        return {"train": 1.0}
    test = HELD_OUT if fold is None else 1 / int(fold.partition("/")[2])
    validation = HELD_OUT * (1 if fold is None else 1 - test)
    return {"train": 1 - validation - test, "validation": validation, "test": test}


def is_fold(text: str) -> bool:
    """Return whether `text` is `all` or like `3/5`, the third of five folds."""
    return text == "all" or is_numbered_fold(text)


def _shuffle(documents: Sequence[Document]) -> list[Document]:
    """Return the documents in an order that depends on their number alone; this stream of NumPy is frozen."""
    return [documents[index] for index in np.random.RandomState(0).permutation(len(documents))]


def _held_out_count(count: int) -> int:
    return max(1, round(HELD_OUT * count))


def _split_off(documents: Sequence[Document], count: int) -> tuple[list[Document], list[Document]]:
    """Return all but the last `count` documents, and the last `count`."""
    if len(documents) <= count:
        raise DataError(
            f"{len(documents)} judgments are too few to train, validate and test on",
            hint="separate judgments by blank lines, or use folders train, validation and test",
        )
    return list(documents[:-count]), list(documents[-count:])
