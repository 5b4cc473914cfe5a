"""Sentences as numbers: words by their hash, or the pieces of a tokenizer that pretrained weights came with."""

import re
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol
from zlib import crc32

import torch
from torch import Tensor

from shoestring.errors import UsageError

_WORD = re.compile(r"\w+|[^\w\s]")
_DIGIT = re.compile(r"\d")


class Tokenizer(Protocol):
    """What makes numbers of sentences."""

    first: int
    """The token that a text begins with."""
    separator: int
    """The one that ends each sentence of it."""

    def encode(self, sentences: Sequence[str]) -> Iterable[Sequence[int]]:
        """The tokens of each sentence, without any of these."""


class HashedWords:
    """A word's number is its CRC-32 within `vocabulary`; 0 is padding.

    Two rare words may share a number (Weinberger et al., ICML 2009). In return there is no vocabulary to build, to keep
    beside the weights or to lose: any data reads the same in any run. A trained one would have to be kept, for the
    WordPiece and BPE trainers of `tokenizers` break ties by the order of a hash map, differently in every process
    (huggingface/tokenizers#1794).
    """

    first, separator, _special = 1, 2, 3

    def __init__(self, vocabulary: int) -> None:
        self._numbers = vocabulary - self._special
        self._number = lru_cache(maxsize=1_000_000)(self._hashed)

    def encode(self, sentences: Sequence[str]) -> Iterable[list[int]]:
        return ([self._number(word) for word in _WORD.findall(one.casefold())] for one in sentences)

    def _hashed(self, word: str) -> int:
        # 1953 and 1954 say the same of a sentence: that there is a year in it.
        return self._special + crc32(_DIGIT.sub("0", word).encode()) % self._numbers


class Pieces:
    """The tokenizer in a folder or of a name on the hub, read without running any code of theirs."""

    def __init__(self, source: str, *, download: bool) -> None:
        """Raises UsageError where there is none."""
        from transformers import AutoTokenizer

        try:
            made: Any = AutoTokenizer.from_pretrained(source, local_files_only=not download, trust_remote_code=False)
        except (OSError, ValueError) as error:
            raise UsageError(
                f"encoder={source} has no tokenizer that can be read: {str(error).splitlines()[0]}",
                hint="give a folder with tokenizer.json or vocab.txt; a name on the hub needs download=true once",
            ) from error
        self._made, self.first, self.separator = made, int(made.cls_token_id), int(made.sep_token_id)

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        # It warns of sentences longer than the model takes; they are cut where their context is known.
        found: list[list[int]] = self._made(list(sentences), add_special_tokens=False, verbose=False)["input_ids"]
        return found


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """Sentences one after the other in one tensor."""

    tokens: Tensor
    """(all of them,) int32."""
    starts: Sequence[int]
    """Where each sentence begins, and where the last one ends."""

    def __getitem__(self, index: int) -> Tensor:
        return self.tokens[self.starts[index] : self.starts[index + 1]]

    def length(self, index: int) -> int:
        return self.starts[index + 1] - self.starts[index]


def encoded(tokenizer: Tokenizer, sentences: Sequence[str]) -> Encoded:
    """Each of them as at least one token."""
    tokens, starts = array("i"), [0]
    for one in tokenizer.encode(sentences):
        tokens.extend(one or [tokenizer.separator])
        starts.append(len(tokens))
    return Encoded(tokens=torch.frombuffer(tokens, dtype=torch.int32), starts=starts)
