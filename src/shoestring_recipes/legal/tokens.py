"""Tokenizers: hashed words, or the tokenizer of pretrained weights."""

import re
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol
from zlib import crc32

import torch
from torch import Tensor

_WORD = re.compile(r"\w+|[^\w\s]")
_DIGIT = re.compile(r"\d")


class Tokenizer(Protocol):
    """Converts sentences to token ids."""

    first: int
    """The token at the start of a text."""
    separator: int
    """The token after each sentence of a text."""

    def encode(self, sentences: Sequence[str]) -> Iterable[Sequence[int]]:
        """Return the tokens of each sentence, without `first` and `separator`."""


class HashedWords:
    """The id of a word is its CRC-32, reduced to the size of the vocabulary; 0 is padding.

    Two rare words may share an id (Weinberger et al., ICML 2009). In return there is no vocabulary to build and store
    with the weights, and all runs tokenize all data in the same way. A trained vocabulary would have to be stored,
    because the WordPiece and BPE trainers of `tokenizers` break ties by the order of a hash map, which differs between
    processes (huggingface/tokenizers#1794).
    """

    first, separator, _special = 1, 2, 3

    def __init__(self, vocabulary: int) -> None:
        self._word_ids = vocabulary - self._special
        self._word_id = lru_cache(maxsize=1_000_000)(self._hash)

    def encode(self, sentences: Sequence[str]) -> Iterable[list[int]]:
        return ([self._word_id(word) for word in _WORD.findall(sentence.casefold())] for sentence in sentences)

    def _hash(self, word: str) -> int:
        # Digits are replaced because 1953 and 1954 carry the same information: the sentence has a year.
        return self._special + crc32(_DIGIT.sub("0", word).encode()) % self._word_ids


class PretrainedTokenizer:
    """The tokenizer of a folder or of a name on the hub, loaded without running code from there."""

    def __init__(self, source: str, *, download: bool) -> None:
        """Raises UsageError if there is no tokenizer."""
        from transformers import AutoTokenizer

        from shoestring.integrations.huggingface import pretrained

        with pretrained.reading(f"encoder={source}: the tokenizer", expected="tokenizer.json or vocab.txt"):
            folder = pretrained.find(source, download=download)
            tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        self._tokenizer, self.first, self.separator = (
            tokenizer,
            int(tokenizer.cls_token_id),
            int(tokenizer.sep_token_id),
        )

    @property
    def library_tokenizer(self) -> Any:
        """The tokenizer of transformers."""
        return self._tokenizer

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        # verbose=False silences warnings about sentences longer than the model takes; `Sentences` truncates them.
        tokens: list[list[int]] = self._tokenizer(list(sentences), add_special_tokens=False, verbose=False)["input_ids"]
        return tokens

    def save(self, folder: Path) -> None:
        """Write the tokenizer's files into `folder`."""
        self._tokenizer.save_pretrained(folder)


@dataclass(frozen=True, kw_only=True)
class EncodedSentences:
    """The tokens of all sentences, concatenated in one tensor."""

    tokens: Tensor
    """(total tokens,) int32."""
    starts: Sequence[int]
    """Index of the first token of each sentence, and the end of the last one."""

    def __getitem__(self, index: int) -> Tensor:
        return self.tokens[self.starts[index] : self.starts[index + 1]]

    def length(self, index: int) -> int:
        return self.starts[index + 1] - self.starts[index]


def encode_sentences(tokenizer: Tokenizer, sentences: Sequence[str]) -> EncodedSentences:
    """Return the tokens of each sentence; a sentence without tokens is one `separator`."""
    tokens, starts = array("i"), [0]
    for sentence in tokenizer.encode(sentences):
        tokens.extend(sentence or [tokenizer.separator])
        starts.append(len(tokens))
    return EncodedSentences(tokens=torch.frombuffer(tokens, dtype=torch.int32), starts=starts)
