"""Overlap of the words of two texts: token F1 and ROUGE-L, and the splitting into words."""

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence

_WORD = re.compile(r"\w+")


def words(text: str) -> list[str]:
    """Return the words of a text in lower case, each letter as one code point with its diacritics.

    The tokenizer of the package rouge_score drops all letters but a to z: it would reduce `số bảy` to s, b and y.
    """
    return _WORD.findall(unicodedata.normalize("NFC", text).casefold())


def token_f1(prediction: Sequence[str], reference: Sequence[str]) -> float:
    """Return the F1 of the common words (Rajpurkar et al., 2016), from 0 to 1."""
    return _f1(sum((Counter(prediction) & Counter(reference)).values()), len(prediction), len(reference))


def rouge_l(prediction: Sequence[str], reference: Sequence[str]) -> float:
    """Return the F1 of the words in the longest common subsequence (Lin, 2004), from 0 to 1."""
    row = [0] * (len(reference) + 1)
    for word in prediction:
        diagonal = 0
        for column, expected in enumerate(reference, start=1):
            length = diagonal + 1 if word == expected else max(row[column], row[column - 1])
            diagonal, row[column] = row[column], length
    return _f1(row[-1], len(prediction), len(reference))


def _f1(common: int, predicted: int, expected: int) -> float:
    """Return 2PR / (P + R); it is 1 for two empty texts."""
    return 2 * common / (predicted + expected) if predicted or expected else 1.0
