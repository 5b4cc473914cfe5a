"""Corpus BLEU over words, as sacrebleu computes it by default (one reference, 4-grams, exponential smoothing)."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence

ORDERS = range(1, 5)


def ngrams(words: Sequence[str], order: int) -> "Counter[tuple[str, ...]]":
    """Return the number of occurrences of each sequence of `order` consecutive words."""
    return Counter(tuple(words[start : start + order]) for start in range(len(words) - order + 1))


def bleu(pairs: Iterable[tuple[Sequence[str], Sequence[str]]]) -> float:
    """Return BLEU, from 0 to 100, of (prediction, reference) pairs of texts as lists of words.

    An order without a match counts half of the order before it (Chen and Cherry, 2014, method 3; sacrebleu's
    `smooth_method="exp"`). BLEU is 0 where no prediction has four words.
    """
    predicted_words = reference_words = 0
    matches, totals = dict.fromkeys(ORDERS, 0), dict.fromkeys(ORDERS, 0)
    for prediction, reference in pairs:
        predicted_words += len(prediction)
        reference_words += len(reference)
        for order in ORDERS:
            predicted_ngrams = ngrams(prediction, order)
            matches[order] += (predicted_ngrams & ngrams(reference, order)).total()
            totals[order] += predicted_ngrams.total()
    if not all(totals.values()) or not any(matches.values()):
        return 0.0
    logs, smoothing = 0.0, 1.0
    for order in ORDERS:
        if not matches[order]:
            smoothing *= 2
        logs += math.log((matches[order] or 1 / smoothing) / totals[order])
    brevity = min(1.0, math.exp(1 - reference_words / predicted_words))
    return 100 * brevity * math.exp(logs / len(ORDERS))
