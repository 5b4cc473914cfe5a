"""How much of the words of one text is in another: token F1 and ROUGE-L, and what counts as a word."""

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence

_WORD = re.compile(r"\w+")


def words(text: str) -> list[str]:
    """The words of a text, small, each letter as one code point and with its marks.

    The tokenizer of the package rouge_score keeps a to z and digits alone: of `số bảy` it would leave s, b and y.
    """
    return _WORD.findall(unicodedata.normalize("NFC", text).casefold())


def token_f1(found: Sequence[str], wanted: Sequence[str]) -> float:
    """Harmonic mean of the shares of words that are in both (Rajpurkar et al., 2016), 0 to 1."""
    return _f1(sum((Counter(found) & Counter(wanted)).values()), len(found), len(wanted))


def rouge_l(found: Sequence[str], wanted: Sequence[str]) -> float:
    """Harmonic mean of the shares of words in the longest common subsequence (Lin, 2004), 0 to 1."""
    row = [0] * (len(wanted) + 1)
    for word in found:
        before = 0
        for place, other in enumerate(wanted, start=1):
            before, row[place] = row[place], before + 1 if word == other else max(row[place], row[place - 1])
    return _f1(row[-1], len(found), len(wanted))


def _f1(common: int, found: int, wanted: int) -> float:
    """2PR / (P + R). Two empty texts are equal."""
    return 2 * common / (found + wanted) if found or wanted else 1.0
