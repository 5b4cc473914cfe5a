"""Texts as numbers: a small vocabulary of the recipe's own, or a pretrained tokenizer.

The own one is a function of the recipe's code, never of the data, so that weights mean the same whatever they are
evaluated on: words of the default data's templates, and below them every letter of Vietnamese and of ASCII.
"""

import re
import string
import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import product
from typing import Any, Protocol

from shoestring.errors import UsageError
from shoestring.recipes.vqa import digits
from shoestring.recipes.vqa.texts import KINDS, TAGS

MARKS = (*TAGS, "\n", *(f"[{kind}]" for kind in KINDS))
"""What has a token of its own: most vocabularies, T5's for one, have no <."""

FIRST = 4
"""The numbers before are special: what pads, begins, ends, and what is unknown."""


class Tokens(Protocol):
    """A text's tokens, without those that begin, end or pad it."""

    count: int
    begin: int
    end: int
    pad: int

    def encode(self, text: str) -> list[int]: ...

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of `tokens`, up to the one that ends it."""


class Pieces:
    """The longest piece of the own vocabulary that fits, one after the other."""

    def __init__(self, *, begin: int, end: int, pad: int, unknown: int) -> None:
        self.begin, self.end, self.pad, self._unknown = begin, end, pad, unknown
        self._pieces = vocabulary()
        self._number = {piece: number for number, piece in enumerate(self._pieces, start=FIRST)}
        longest_first = sorted(self._pieces, key=len, reverse=True)
        self._match = re.compile("|".join(map(re.escape, longest_first)) + "|.", re.DOTALL)
        self.count = FIRST + len(self._pieces)

    def encode(self, text: str) -> list[int]:
        return [self._number.get(piece, self._unknown) for piece in self._match.findall(text)]

    def decode(self, tokens: Iterable[int]) -> str:
        found = []
        for token in tokens:
            if token == self.end:
                break
            if token not in (self.begin, self.pad):
                place = token - FIRST
                found.append(self._pieces[place] if 0 <= place < len(self._pieces) else "\N{REPLACEMENT CHARACTER}")
        return "".join(found)


class Pretrained:
    """A tokenizer of transformers, with its sentinels in the place of `MARKS` where `marked`."""

    def __init__(self, tokenizer: Any, *, marked: bool) -> None:
        self._tokenizer = tokenizer
        self.count = len(tokenizer)
        # RoBERTa's begin is its classification token; T5 begins what it writes with what pads.
        self.pad, self.end = tokenizer.pad_token_id, tokenizer.eos_token_id
        self.begin = self.pad if tokenizer.bos_token_id is None else tokenizer.bos_token_id
        names = [f"<extra_id_{place}>" for place in range(len(MARKS))] if marked else []
        known = tokenizer.get_vocab()
        if self.pad is None or self.end is None or any(name not in known for name in names):
            raise UsageError(
                f"the tokenizer {tokenizer.name_or_path} lacks what pads, what ends, or <extra_id_0> to "
                f"<extra_id_{len(MARKS) - 1}>, which the tags are written with",
                hint="a T5's tokenizer has them",
            )
        self._number = {mark: known[name] for mark, name in zip(MARKS, names, strict=False)}
        self._mark = {number: mark for mark, number in self._number.items()}
        self._split = re.compile(f"({'|'.join(map(re.escape, self._number))})") if marked else None

    def encode(self, text: str) -> list[int]:
        found: list[int] = []
        for part in self._split.split(text) if self._split else [text]:
            if part in self._number:
                found.append(self._number[part])
            elif part:
                found += self._tokenizer.encode(part, add_special_tokens=False)
        return found

    def decode(self, tokens: Iterable[int]) -> str:
        texts: list[str] = []
        plain: list[int] = []
        for token in (*tokens, self.end):
            if token == self.end or token in self._mark:
                texts.append(self._text(plain))
                plain = []
                if token == self.end:
                    break
                mark = self._mark[token]
                # What begins a text loses its space on the way through most tokenizers.
                texts.append(f"{mark} " if mark.startswith("[") else mark)
            else:
                plain.append(token)
        return "".join(texts)

    def _text(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)).strip()


def questions() -> Pieces:
    """Numbered as RoBERTa's special tokens are."""
    return Pieces(begin=0, pad=1, end=2, unknown=3)


def texts() -> Pieces:
    """Numbered as T5's are, which begins with what pads."""
    return Pieces(begin=0, pad=0, end=1, unknown=2)


@lru_cache(maxsize=1)
def vocabulary() -> tuple[str, ...]:
    """The pieces, in an order that does not change."""
    words = {found for text in digits.words() for found in re.findall(r" ?\w+", text)}
    words |= {f" {word}" for word in words if not word.startswith(" ")} | {word.strip() for word in words}
    letters = "".join(sorted(_vietnamese()))
    alphabet = [*string.digits, *string.ascii_letters, *string.punctuation, " ", *letters, *letters.upper()]
    return (*MARKS, *alphabet, *sorted(word for word in words if len(word) > 1))


def _vietnamese() -> set[str]:
    """Small letters beyond ASCII: twelve vowels in six tones, and đ."""
    tones = ("", "\N{COMBINING GRAVE ACCENT}", "\N{COMBINING ACUTE ACCENT}", "\N{COMBINING HOOK ABOVE}",
             "\N{COMBINING TILDE}", "\N{COMBINING DOT BELOW}")  # fmt: skip
    toned = (unicodedata.normalize("NFC", vowel + tone) for vowel, tone in product("aăâeêioôơuưy", tones))
    return {letter for letter in (*toned, "đ") if not letter.isascii()}
