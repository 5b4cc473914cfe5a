"""CIDEr-D: cosine of TF-IDF vectors of n-grams (Vedantam et al., 2015), as the COCO caption evaluation computes it."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from shoestring_recipes.vqa.bleu import ORDERS, ngrams

SIGMA = 6.0
"""Standard deviation of the Gaussian penalty for a difference in length."""

Ngram = tuple[str, ...]


def cider(pairs: Sequence[tuple[Sequence[str], Sequence[str]]]) -> float:
    """Return the mean score, from 0 to 10, of (prediction, reference) pairs of texts as lists of words.

    The inverse document frequency is that of the references, so scores are only comparable on the same data. Where all
    references are equal, every n-gram has weight 0, and so the score is 0.
    """
    if not pairs:
        return 0.0
    # The number of references with an n-gram, not its number of occurrences.
    frequencies = Counter(
        ngram for _, reference in pairs for order in ORDERS for ngram in set(ngrams(reference, order))
    )
    return sum(_score(prediction, reference, frequencies, len(pairs)) for prediction, reference in pairs) / len(pairs)


def _score(
    prediction: Sequence[str], reference: Sequence[str], frequencies: Mapping[Ngram, int], reference_count: int
) -> float:
    # COCO measures the length of a text by its number of word pairs.
    difference = max(0, len(prediction) - 1) - max(0, len(reference) - 1)
    penalty = math.exp(-(difference**2) / (2 * SIGMA**2))
    cosines = (_cosine(prediction, reference, order, frequencies, reference_count) for order in ORDERS)
    return 10 * penalty * sum(cosines) / len(ORDERS)


def _cosine(
    prediction: Sequence[str],
    reference: Sequence[str],
    order: int,
    frequencies: Mapping[Ngram, int],
    reference_count: int,
) -> float:
    """Return the cosine of the two vectors; a repeated n-gram counts at most as often as in the reference."""
    predicted, expected = (
        _weight(ngrams(words, order), frequencies, reference_count) for words in (prediction, reference)
    )
    norms = math.hypot(*predicted.values()) * math.hypot(*expected.values())
    products = (
        min(weight, expected[ngram]) * expected[ngram] for ngram, weight in predicted.items() if ngram in expected
    )
    return sum(products) / norms if norms else 0.0


def _weight(counts: Mapping[Ngram, int], frequencies: Mapping[Ngram, int], reference_count: int) -> dict[Ngram, float]:
    return {
        ngram: count * (math.log(reference_count) - math.log(max(1, frequencies.get(ngram, 0))))
        for ngram, count in counts.items()
    }
