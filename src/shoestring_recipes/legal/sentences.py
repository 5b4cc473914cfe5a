"""Samples of the classifier: a sentence with its context, and its role."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils.data import Dataset

from shoestring_recipes.legal.documents import Document, SentenceIds
from shoestring_recipes.legal.tokens import Tokenizer, encode_sentences

CONTEXTS: dict[str, tuple[int, ...]] = {
    "single": (0,),
    "previous": (-1, 0),
    "two_previous": (-2, -1, 0),
    "surrounding": (-1, 0, 1),
}
"""Offsets of the joined sentences from the sentence to classify."""


class Sentences(Dataset[tuple[Tensor, Tensor, Tensor]]):
    """All sentences of some judgments. Each sample is tokens (length,) int64, their mask (length,) and a class ().

    A text is the token `first`, then for each sentence its tokens and `separator`. Sentences beyond the ends of a
    judgment are empty, so the position of the sentence to classify is fixed. A text longer than `max_tokens` is
    truncated in the context before the sentence, farthest tokens first.
    """

    def __init__(self, documents: Sequence[Document], tokenizer: Tokenizer, context: str, max_tokens: int) -> None:
        self._texts = [sentence for document in documents for sentence in document.sentences]
        self._tokens = encode_sentences(tokenizer, self._texts)
        self.roles = torch.tensor([role for document in documents for role in document.roles])
        self.ids = SentenceIds(documents)
        # The number of sentences before and after each sentence in its judgment.
        self._before = [place for document in documents for place in range(len(document.roles))]
        self._after = [
            len(document.roles) - 1 - place for document in documents for place in range(len(document.roles))
        ]
        self._context, self._max_tokens = CONTEXTS[context], max_tokens
        self._first, self._separator = torch.tensor([tokenizer.first]), torch.tensor([tokenizer.separator])

    def __len__(self) -> int:
        return len(self.roles)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, Tensor]:
        token_counts = self._token_counts(index)
        pieces = [self._first]
        for offset in self._context:
            if offset in token_counts:
                sentence = self._tokens[index + offset]
                count = token_counts[offset]
                # The end of a preceding sentence is nearest to the sentence to classify.
                pieces.append(sentence[len(sentence) - count :] if offset < 0 else sentence[:count])
            pieces.append(self._separator)
        tokens = torch.cat([piece.to(torch.int64) for piece in pieces])
        return tokens, torch.ones_like(tokens), self.roles[index]

    def text(self, index: int) -> str:
        """Return the sentence to classify."""
        return self._texts[index]

    def length(self, index: int) -> int:
        """Return the number of tokens of a sample."""
        return 1 + len(self._context) + sum(self._token_counts(index).values())

    def is_empty(self, index: int) -> bool:
        """Return whether a sentence has no tokens besides the separator that stands for it."""
        return self._tokens[index].tolist() == self._separator.tolist()

    def _token_counts(self, index: int) -> dict[int, int]:
        """Return the number of tokens of each sentence that fit into the text, by the offset of the sentence."""
        free_tokens, token_counts = self._max_tokens - 1 - len(self._context), {}
        for offset in sorted(self._context, key=abs):
            if -self._before[index] <= offset <= self._after[index]:
                token_counts[offset] = min(free_tokens, self._tokens.length(index + offset))
                free_tokens -= token_counts[offset]
        return token_counts
