"""Tokenizers: the recipe's own with a small vocabulary, or a pretrained one.

The recipe's own vocabulary depends on its code and never on the data, so that weights can be evaluated on any data: it
has the words of the default data's templates, and every Vietnamese and ASCII letter.
"""

import re
import string
import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import product
from typing import Any, Protocol

from shoestring.base.errors import UsageError
from shoestring_recipes.vqa import digits
from shoestring_recipes.vqa.texts import KINDS, TAGS

MARKERS = (*TAGS, "\n", *(f"[{kind}]" for kind in KINDS))
"""Texts that are one token each; most vocabularies, for example T5's, have no <."""

FIRST = 4
"""The first number of an ordinary token, after those of padding, begin, end and unknown tokens."""


class Tokenizer(Protocol):
    """Converts a text to tokens, without begin, end and padding tokens, and back."""

    count: int
    begin: int
    end: int
    pad: int

    def encode(self, text: str) -> list[int]: ...

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of `tokens` before the end token."""


class VocabularyTokenizer:
    """A tokenizer that repeatedly takes the longest matching piece of the recipe's own vocabulary."""

    def __init__(self, *, begin: int, end: int, pad: int, unknown: int) -> None:
        self.begin, self.end, self.pad, self.unknown = begin, end, pad, unknown
        self.pieces = vocabulary()
        self._number = {piece: number for number, piece in enumerate(self.pieces, start=FIRST)}
        longest_first = sorted(self.pieces, key=len, reverse=True)
        self._match = re.compile("|".join(map(re.escape, longest_first)) + "|.", re.DOTALL)
        self.count = FIRST + len(self.pieces)

    def encode(self, text: str) -> list[int]:
        return [self._number.get(piece, self.unknown) for piece in self._match.findall(text)]

    def decode(self, tokens: Iterable[int]) -> str:
        texts = []
        for token in tokens:
            if token == self.end:
                break
            if token not in (self.begin, self.pad):
                index = token - FIRST
                texts.append(self.pieces[index] if 0 <= index < len(self.pieces) else "\N{REPLACEMENT CHARACTER}")
        return "".join(texts)


class PretrainedTokenizer:
    """A tokenizer of transformers, optionally with its sentinel tokens used for `MARKERS`."""

    def __init__(self, tokenizer: Any, *, has_markers: bool) -> None:
        self._tokenizer = tokenizer
        self.count = len(tokenizer)
        # RoBERTa's begin token is its classification token; T5's is its padding token.
        self.pad, self.end = tokenizer.pad_token_id, tokenizer.eos_token_id
        self.begin = self.pad if tokenizer.bos_token_id is None else tokenizer.bos_token_id
        names = [f"<extra_id_{number}>" for number in range(len(MARKERS))] if has_markers else []
        token_numbers = tokenizer.get_vocab()
        if self.pad is None or self.end is None or any(name not in token_numbers for name in names):
            raise UsageError(
                f"the tokenizer {tokenizer.name_or_path} lacks a padding token, an end token, or the tokens "
                f"<extra_id_0> to <extra_id_{len(MARKERS) - 1}>, which represent the tags",
                hint="use the tokenizer of a T5 model",
            )
        self._number = {marker: token_numbers[name] for marker, name in zip(MARKERS, names, strict=False)}
        self._marker = {number: marker for marker, number in self._number.items()}
        self._split = re.compile(f"({'|'.join(map(re.escape, self._number))})") if has_markers else None

    @property
    def library_tokenizer(self) -> Any:
        """The tokenizer of transformers."""
        return self._tokenizer

    def encode(self, text: str) -> list[int]:
        tokens: list[int] = []
        for part in self._split.split(text) if self._split else [text]:
            if part in self._number:
                tokens.append(self._number[part])
            elif part:
                tokens += self._tokenizer.encode(part, add_special_tokens=False)
        return tokens

    def decode(self, tokens: Iterable[int]) -> str:
        texts: list[str] = []
        pending: list[int] = []
        for token in (*tokens, self.end):
            if token == self.end or token in self._marker:
                texts.append(self._decode_plain(pending))
                pending = []
                if token == self.end:
                    break
                marker = self._marker[token]
                # Most tokenizers drop the space at the beginning of a text.
                texts.append(f"{marker} " if marker.startswith("[") else marker)
            else:
                pending.append(token)
        return "".join(texts)

    def _decode_plain(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)).strip()


def build_question_tokenizer() -> VocabularyTokenizer:
    """Return a tokenizer with the numbers of RoBERTa's special tokens."""
    return VocabularyTokenizer(begin=0, pad=1, end=2, unknown=3)


def build_text_tokenizer() -> VocabularyTokenizer:
    """Return a tokenizer with the numbers of T5's special tokens, whose begin token is the padding token."""
    return VocabularyTokenizer(begin=0, pad=0, end=1, unknown=2)


@lru_cache(maxsize=1)
def vocabulary() -> tuple[str, ...]:
    """Return the pieces in a fixed order."""
    words = {word for text in digits.template_texts() for word in re.findall(r" ?\w+", text)}
    words |= {f" {word}" for word in words if not word.startswith(" ")} | {word.strip() for word in words}
    letters = "".join(sorted(_vietnamese_letters()))
    alphabet = [*string.digits, *string.ascii_letters, *string.punctuation, " ", *letters, *letters.upper()]
    return (*MARKERS, *alphabet, *sorted(word for word in words if len(word) > 1))


def _vietnamese_letters() -> set[str]:
    """Return the lower-case letters beyond ASCII: twelve vowels in six tones, and đ."""
    tones = ("", "\N{COMBINING GRAVE ACCENT}", "\N{COMBINING ACUTE ACCENT}", "\N{COMBINING HOOK ABOVE}",
             "\N{COMBINING TILDE}", "\N{COMBINING DOT BELOW}")  # fmt: skip
    toned = (unicodedata.normalize("NFC", vowel + tone) for vowel, tone in product("aăâeêioôơuưy", tones))
    return {letter for letter in (*toned, "đ") if not letter.isascii()}
