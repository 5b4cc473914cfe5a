"""Encoding: from texts in which some characters are learned to samples, whose tokens are."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy

from shoestring.base.errors import UsageError
from shoestring_recipes.finetune.samples import Sample

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shoestring_recipes.finetune.templates import Span


@dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """A row as text, before it is divided into tokens."""

    text: str
    loss_mask: Sequence[Span] | None
    """The characters that are learned; None: all."""
    by_template: bool
    """Whether a chat template wrote the text and, with it, the special tokens at its beginning and end."""
    reasons: Sequence[tuple[Span, str]] = ()
    """Characters of answers that are not learned, and why."""


class Encoder:
    """Divides texts into tokens."""

    def __init__(self, tokenizer: Any, *, seq_len: int, stop_tokens: Collection[int]) -> None:
        """Raises UsageError for a tokenizer without tokens, or that cannot say which characters a token stands for."""
        if not tokenizer.is_fast:
            raise UsageError(
                f"{type(tokenizer).__name__} cannot tell which characters a token stands for",
                hint="use a model with a tokenizer.json",
            )
        self._backend = tokenizer.backend_tokenizer
        # A tokenizer.json may ask for both; samples are cut here, and padded in batches.
        self._backend.no_truncation()
        self._backend.no_padding()
        self._seq_len = seq_len
        self._added = frozenset(tokenizer.added_tokens_decoder)
        self._stop_texts = tuple(tokenizer.convert_ids_to_tokens(sorted(stop_tokens)))
        self._before, self._after = self._find_surrounding(tokenizer.eos_token_id)

    def samples(self, written: Sequence[Written]) -> Iterator[Sample]:
        """Return the sample of each text. Many at once are faster than one after another."""
        encodings = self._backend.encode_batch([row.text for row in written], add_special_tokens=False)
        return map(self._sample, written, encodings)

    def reasons(self, written: Written) -> list[tuple[int, int, str]]:
        """Return the first token of each answer that is not learned, the token after its last, and the reason."""
        encoding = self._backend.encode(written.text, add_special_tokens=False)
        return [(*_token_range(encoding, *span), reason) for span, reason in written.reasons]

    def prompt(self, text: str, *, by_template: bool) -> list[int]:
        """Return the tokens of a text that the model continues."""
        tokens = list(self._backend.encode(text, add_special_tokens=False).ids)
        return tokens if by_template else [*self._missing_before(tokens), *tokens]

    def _sample(self, written: Written, encoding: Any) -> Sample:
        tokens = numpy.array(encoding.ids, dtype=numpy.int32)
        loss_mask = numpy.full(len(tokens), written.loss_mask is None)
        for start, end in written.loss_mask or ():
            first, last = _token_range(encoding, start, end)
            # Some special tokens take the white space after them; the model does not generate them with it.
            if first < last and encoding.token_to_chars(first)[0] < start and tokens[first] in self._added:
                first += 1
            loss_mask[first:last] = True
        if not written.by_template:
            before = self._missing_before(tokens)
            after = [] if written.text.rstrip().endswith(self._stop_texts) else self._after
            tokens = numpy.concatenate([before, tokens, after]).astype(numpy.int32)
            loss_mask = numpy.concatenate([[False] * len(before), loss_mask, [True] * len(after)]).astype(bool)
        loss_mask[:1] = False
        # Copies, so that an end that is cut off is not kept in memory.
        return Sample(tokens[: self._seq_len].copy(), loss_mask[: self._seq_len].copy(), len(tokens))

    def _find_surrounding(self, end_token: int | None) -> tuple[list[int], list[int]]:
        """Return the tokens before and after a text that no template has written, the end token among them."""
        inner = self._backend.encode("a", add_special_tokens=False).ids
        whole = self._backend.encode("a").ids
        start = next((place for place in range(len(whole)) if whole[place : place + len(inner)] == inner), None)
        if start is None:
            raise UsageError(
                'the tokenizer has no tokens for the text "a"',
                hint="the model's folder needs its tokenizer as well, such as tokenizer.json; a plan with rows and "
                "row_tokens needs none",
            )
        after = whole[start + len(inner) :]
        return whole[:start], after if end_token is None or end_token in after else [*after, end_token]

    def _missing_before(self, tokens: Sequence[int] | NDArray[numpy.int32]) -> list[int]:
        """Return the tokens that belong before a text, unless the text begins with them itself."""
        return [] if list(tokens[: len(self._before)]) == self._before else self._before


def _token_range(encoding: Any, start: int, end: int) -> tuple[int, int]:
    """Return the first token of some characters, and the one after their last."""
    if start >= end:
        return 0, 0
    first, last = encoding.char_to_token(start), encoding.char_to_token(end - 1)
    if first is None or last is None:  # some tokenizers leave white space out of what a token stands for
        places = encoding.offsets
        first = next((token for token, place in enumerate(places) if place[1] > start), len(places))
        last = next((token for token in reversed(range(len(places))) if places[token][0] < end), -1)
    # A character may be divided into several tokens.
    while last + 1 < len(encoding) and encoding.token_to_chars(last + 1)[0] < end:
        last += 1
    return first, last + 1
