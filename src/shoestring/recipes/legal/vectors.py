"""Sentences that are given as numbers: `f1 f2 ... fn<TAB>role`, as Law-AI writes what sent2vec made of them."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from shoestring.data.order import split
from shoestring.data.padding import pad_batch
from shoestring.recipes.legal.documents import Document


def wrong(text: str, width: int) -> str | None:
    """Why `text` is not `width` finite numbers."""
    try:
        found = torch.tensor([float(one) for one in text.split()])
    except ValueError as error:
        return str(error)
    if len(found) != width:
        return f"has {len(found)} numbers, not {width}"
    return None if found.isfinite().all() else "has a number that is not finite"


class Vectors(Dataset[tuple[Tensor, Tensor]]):
    """As `Judgments`: a sample is (sentences, width) float32 and roles (sentences,) int64."""

    def __init__(self, documents: Sequence[Document], *, sentences: int) -> None:
        self._parts = []
        for one in documents:
            numbers = torch.tensor([[float(number) for number in text.split()] for text in one.sentences])
            roles = torch.tensor(one.roles)
            for part in split(range(len(roles)), sentences):
                self._parts.append((numbers[part[0] : part[-1] + 1], roles[part[0] : part[-1] + 1]))

    def __len__(self) -> int:
        return len(self._parts)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self._parts[index]

    def length(self, index: int) -> int:
        """Sentences of a sample."""
        return len(self._parts[index][1])


def collate(samples: Sequence[tuple[Tensor, Tensor]]) -> dict[str, Any]:
    """`vectors` (n, sentences, width) float32, `roles` and `mask` as of `judgments.collate`."""
    return {
        "vectors": pad_batch([numbers for numbers, _ in samples], 0.0, multiple=1),
        "roles": pad_batch([roles for _, roles in samples], 0, multiple=1),
        "mask": pad_batch([torch.ones_like(roles, dtype=torch.bool) for _, roles in samples], False, multiple=1),
    }


def largest(size: int, *, width: int, sentences: int) -> dict[str, Any]:
    """A batch of `size` samples, each as long as it can be."""
    return {
        "vectors": torch.zeros(size, sentences, width),
        "roles": torch.zeros(size, sentences, dtype=torch.int64),
        "mask": torch.ones(size, sentences, dtype=torch.bool),
    }
