"""Precomputed sentence vectors: `f1 f2 ... fn<TAB>role` lines, the format of Law-AI's sent2vec vectors."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from shoestring.recipe.microbatches import split
from shoestring.training.data.padding import pad_batch
from shoestring_recipes.legal.documents import Document, SentenceIds


def vector_problem(text: str, width: int) -> str | None:
    """Return why `text` is not a vector of `width` finite numbers; None if it is."""
    try:
        vector = torch.tensor([float(number) for number in text.split()])
    except ValueError as error:
        return str(error)
    if len(vector) != width:
        return f"has {len(vector)} numbers, not {width}"
    return None if vector.isfinite().all() else "has a number that is not finite"


class Vectors(Dataset[tuple[Tensor, Tensor]]):
    """Judgments as samples: vectors (sentences, width) float32 and roles (sentences,) int64.

    A judgment of more than `sentences` is split as by `judgments.Judgments`.
    """

    def __init__(self, documents: Sequence[Document], *, sentences: int) -> None:
        self._parts, self._numbers = [], []
        self.ids = SentenceIds(documents)
        first = 0
        for document in documents:
            numbers = torch.tensor([[float(number) for number in text.split()] for text in document.sentences])
            roles = torch.tensor(document.roles)
            for part in split(range(len(roles)), sentences):
                self._parts.append((numbers[part[0] : part[-1] + 1], roles[part[0] : part[-1] + 1]))
                self._numbers.append(range(first + part[0], first + part[-1] + 1))
            first += len(roles)

    def __len__(self) -> int:
        return len(self._parts)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self._parts[index]

    def text(self, index: int) -> str:  # noqa: ARG002
        """Return an empty text: the sentences are only known as vectors."""
        return ""

    def length(self, index: int) -> int:
        """Return the number of sentences of a sample."""
        return len(self._parts[index][1])

    def numbers(self, index: int) -> Sequence[int]:
        """Return the numbers of a sample's sentences among those of all judgments."""
        return self._numbers[index]


def collate(samples: Sequence[tuple[Tensor, Tensor]]) -> dict[str, Any]:
    """Return `vectors` (n, sentences, width) float32, and `roles` and `mask` as `judgments.collate` does."""
    return {
        "vectors": pad_batch([numbers for numbers, _ in samples], 0.0, multiple=1),
        "roles": pad_batch([roles for _, roles in samples], 0, multiple=1),
        "mask": pad_batch([torch.ones_like(roles, dtype=torch.bool) for _, roles in samples], False, multiple=1),
    }


def largest_batch(size: int, *, width: int, sentences: int) -> dict[str, Any]:
    """Return a batch of `size` samples of the largest length."""
    return {
        "vectors": torch.zeros(size, sentences, width),
        "roles": torch.zeros(size, sentences, dtype=torch.int64),
        "mask": torch.ones(size, sentences, dtype=torch.bool),
    }
