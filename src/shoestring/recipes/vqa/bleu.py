"""Corpus BLEU over words, as sacrebleu computes it by default (one reference, 4-grams, exponential smoothing)."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence

ORDERS = range(1, 5)


def ngrams(words: Sequence[str], order: int) -> "Counter[tuple[str, ...]]":
    """How often each run of `order` words is there."""
    return Counter(tuple(words[start : start + order]) for start in range(len(words) - order + 1))


def bleu(pairs: Iterable[tuple[Sequence[str], Sequence[str]]]) -> float:
    """BLEU of (found, wanted) texts as lists of words, 0 to 100.

    Each further order without a match counts half of the one before (Chen and Cherry, 2014, method 3; sacrebleu's
    `smooth_method="exp"`). 0 where no text has four words.
    """
    found_words = wanted_words = 0
    matches, totals = dict.fromkeys(ORDERS, 0), dict.fromkeys(ORDERS, 0)
    for found, wanted in pairs:
        found_words, wanted_words = found_words + len(found), wanted_words + len(wanted)
        for order in ORDERS:
            own = ngrams(found, order)
            matches[order] += (own & ngrams(wanted, order)).total()
            totals[order] += own.total()
    if not all(totals.values()) or not any(matches.values()):
        return 0.0
    logs, smoothing = 0.0, 1.0
    for order in ORDERS:
        if not matches[order]:
            smoothing *= 2
        logs += math.log((matches[order] or 1 / smoothing) / totals[order])
    brevity = min(1.0, math.exp(1 - wanted_words / found_words))
    return 100 * brevity * math.exp(logs / len(ORDERS))
