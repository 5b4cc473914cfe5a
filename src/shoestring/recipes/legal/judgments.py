"""Samples of the hierarchical network: whole judgments, or as much of one as it is given at once."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils.data import Dataset

from shoestring.data.order import split
from shoestring.data.padding import pad_batch
from shoestring.recipes.legal.documents import Document
from shoestring.recipes.legal.tokens import Tokenizer, encoded

Sample: TypeAlias = tuple[list[Tensor], Tensor]
"""The words of each sentence, (words,) int64, and the sentences' roles (sentences,) int64."""

Batch: TypeAlias = dict[str, Any]
"""Of n judgments with at most s sentences: `roles` (n, s) int64 and `mask` (n, s) bool; and all their sentences in
groups of about the same length: of each group `words` (sentences, words) int64, 0 is padding, `lengths` (sentences,)
int64 and `places` (sentences,) int64, which count the judgments' rows one after the other, padding too.
"""

_WIDTHS = (8, 16, 32, 64, 128, 256, 512)
"""Words that the sentences of a group have at most. Padding all to the longest of a judgment would be most of the work:
half of the sentences have less than 25 words, and there is one of 200 in almost every judgment."""


class Judgments(Dataset[Sample]):
    """Sentences are cut after `words` words; a judgment of more than `sentences` comes in parts about equally long."""

    def __init__(self, documents: Sequence[Document], tokenizer: Tokenizer, *, words: int, sentences: int) -> None:
        self._tokens = encoded(tokenizer, [one for document in documents for one in document.sentences])
        self._words = words
        self.roles = torch.tensor([role for document in documents for role in document.roles])
        self._parts: list[Sequence[int]] = []
        first = 0
        for document in documents:
            self._parts += split(range(first, first + len(document.roles)), sentences)
            first += len(document.roles)

    def __len__(self) -> int:
        return len(self._parts)

    def __getitem__(self, index: int) -> Sample:
        part = self._parts[index]
        return (
            [self._tokens[sentence][: self._words].to(torch.int64) for sentence in part],
            self.roles[part[0] : part[-1] + 1],
        )

    def length(self, index: int) -> int:
        """Sentences of a sample."""
        return len(self._parts[index])


def collate(samples: Sequence[Sample]) -> Batch:
    longest = max(len(roles) for _, roles in samples)
    sentences = [
        (words, row * longest + place) for row, (texts, _) in enumerate(samples) for place, words in enumerate(texts)
    ]
    groups = [
        [one for one in sentences if narrower < len(one[0]) <= width]
        for narrower, width in zip((0, *_WIDTHS), _WIDTHS, strict=False)
    ]
    groups = [group for group in groups if group]
    return {
        "roles": pad_batch([roles for _, roles in samples], 0, multiple=1),
        "mask": pad_batch([torch.ones_like(roles, dtype=torch.bool) for _, roles in samples], False, multiple=1),
        "words": tuple(pad_batch([words for words, _ in group], 0) for group in groups),
        "lengths": tuple(torch.tensor([len(words) for words, _ in group]) for group in groups),
        "places": tuple(torch.tensor([place for _, place in group]) for group in groups),
    }


def largest(size: int, *, words: int, sentences: int) -> Batch:
    """A batch of `size` samples, each as long as it can be."""
    ones = torch.ones(size * sentences, dtype=torch.int64)
    return {
        "roles": torch.zeros(size, sentences, dtype=torch.int64),
        "mask": torch.ones(size, sentences, dtype=torch.bool),
        "words": (ones[:, None].expand(-1, words).contiguous(),),
        "lengths": (ones * words,),
        "places": (torch.arange(size * sentences),),
    }
