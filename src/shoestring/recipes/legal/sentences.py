"""Samples of the classifier: a sentence, those around it, and its role."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils.data import Dataset

from shoestring.recipes.legal.documents import Document
from shoestring.recipes.legal.tokens import Tokenizer, encoded

CONTEXTS: dict[str, tuple[int, ...]] = {
    "single": (0,),
    "previous": (-1, 0),
    "two_previous": (-2, -1, 0),
    "surrounding": (-1, 0, 1),
}
"""Which sentences are joined, by their places from the one that is classified."""


class Sentences(Dataset[tuple[Tensor, Tensor, Tensor]]):
    """Every sentence of some judgments. Each sample is tokens (length,) int64, their mask (length,) and a class ().

    A text is [first] and for each of its sentences the tokens and [separator]; beyond a judgment's ends a sentence is
    empty, so that the place of the one to classify never changes. Where `longest` tokens are too few the context is cut
    and not the sentence: what lies farthest from it goes first.
    """

    def __init__(self, documents: Sequence[Document], tokenizer: Tokenizer, context: str, longest: int) -> None:
        self._tokens = encoded(tokenizer, [one for document in documents for one in document.sentences])
        self.roles = torch.tensor([role for document in documents for role in document.roles])
        # The place of each sentence in its judgment, and how many come after it.
        self._before = [place for one in documents for place in range(len(one.roles))]
        self._after = [len(one.roles) - 1 - place for one in documents for place in range(len(one.roles))]
        self._context, self._longest = CONTEXTS[context], longest
        self._first, self._separator = torch.tensor([tokenizer.first]), torch.tensor([tokenizer.separator])

    def __len__(self) -> int:
        return len(self.roles)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, Tensor]:
        kept = self._kept(index)
        pieces = [self._first]
        for offset in self._context:
            if offset in kept:
                sentence = self._tokens[index + offset]
                # Of what comes before, the end is nearer.
                pieces.append(sentence[len(sentence) - kept[offset] :] if offset < 0 else sentence[: kept[offset]])
            pieces.append(self._separator)
        tokens = torch.cat([piece.to(torch.int64) for piece in pieces])
        return tokens, torch.ones_like(tokens), self.roles[index]

    def length(self, index: int) -> int:
        """Tokens of a sample."""
        return 1 + len(self._context) + sum(self._kept(index).values())

    def _kept(self, index: int) -> dict[int, int]:
        """How many tokens of each sentence there is room for, by its place from this one."""
        room, kept = self._longest - 1 - len(self._context), {}
        for offset in sorted(self._context, key=abs):
            if -self._before[index] <= offset <= self._after[index]:
                kept[offset] = min(room, self._tokens.length(index + offset))
                room -= kept[offset]
        return kept
