"""Samples of the hierarchical network: whole judgments, or parts of long ones."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils.data import Dataset

from shoestring.recipe.microbatches import split
from shoestring.training.data.padding import pad_batch
from shoestring_recipes.legal.documents import Document, SentenceIds
from shoestring_recipes.legal.tokens import Tokenizer, encode_sentences

Sample: TypeAlias = tuple[list[Tensor], Tensor]
"""The words of each sentence, (words,) int64, and the sentences' roles (sentences,) int64."""

Batch: TypeAlias = dict[str, Any]
"""A batch of n judgments with at most s sentences: `roles` (n, s) int64, `mask` (n, s) bool, and the sentences.

The sentences are in groups of similar length. Each group has `words` (sentences, words) int64, padded with 0, `lengths`
(sentences,) int64 and `places` (sentences,) int64, the index of each sentence in the flattened `mask`.
"""

_GROUP_WIDTHS = (8, 16, 32, 64, 128, 256, 512)
"""Largest number of words of a sentence in each group. If all sentences were padded to the longest of a judgment, most
of the work would be padding: half of them have less than 25 words, and almost every judgment has one of 200."""


class Judgments(Dataset[Sample]):
    """Judgments as samples.

    Sentences are truncated to `words` words; a judgment of more than `sentences` is split into parts of similar length.
    """

    def __init__(self, documents: Sequence[Document], tokenizer: Tokenizer, *, words: int, sentences: int) -> None:
        self._texts = [sentence for document in documents for sentence in document.sentences]
        self._tokens = encode_sentences(tokenizer, self._texts)
        self._words = words
        self.roles = torch.tensor([role for document in documents for role in document.roles])
        self.ids = SentenceIds(documents)
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

    def text(self, index: int) -> str:
        """Return the first sentence of a sample."""
        return self._texts[self._parts[index][0]]

    def length(self, index: int) -> int:
        """Return the number of sentences of a sample."""
        return len(self._parts[index])

    def numbers(self, index: int) -> Sequence[int]:
        """Return the numbers of a sample's sentences among those of all judgments."""
        return self._parts[index]


def collate(samples: Sequence[Sample]) -> Batch:
    """Return the samples as a padded batch."""
    row_length = max(len(roles) for _, roles in samples)
    sentences = [
        (words, row * row_length + place) for row, (texts, _) in enumerate(samples) for place, words in enumerate(texts)
    ]
    groups = [
        [(words, place) for words, place in sentences if narrower < len(words) <= width]
        for narrower, width in zip((0, *_GROUP_WIDTHS), _GROUP_WIDTHS, strict=False)
    ]
    groups = [group for group in groups if group]
    return {
        "roles": pad_batch([roles for _, roles in samples], 0, multiple=1),
        "mask": pad_batch([torch.ones_like(roles, dtype=torch.bool) for _, roles in samples], False, multiple=1),
        "words": tuple(pad_batch([words for words, _ in group], 0) for group in groups),
        "lengths": tuple(torch.tensor([len(words) for words, _ in group]) for group in groups),
        "places": tuple(torch.tensor([place for _, place in group]) for group in groups),
    }


def largest_batch(size: int, *, words: int, sentences: int) -> Batch:
    """Return a batch of `size` samples of the largest length."""
    all_ones = torch.ones(size * sentences, dtype=torch.int64)
    return {
        "roles": torch.zeros(size, sentences, dtype=torch.int64),
        "mask": torch.ones(size, sentences, dtype=torch.bool),
        "words": (all_ones[:, None].expand(-1, words).contiguous(),),
        "lengths": (all_ones * words,),
        "places": (torch.arange(size * sentences),),
    }
