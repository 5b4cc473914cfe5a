"""CIDEr-D: cosine of TF-IDF vectors of n-grams (Vedantam et al., 2015), as the COCO caption evaluation computes it."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from shoestring.recipes.vqa.bleu import ORDERS, ngrams

SIGMA = 6.0
"""Of the Gaussian that a difference in length is punished by."""

Gram = tuple[str, ...]


def cider(pairs: Sequence[tuple[Sequence[str], Sequence[str]]]) -> float:
    """The mean over (found, wanted) texts as lists of words, 0 to 10.

    How rare an n-gram is counts over all wanted texts, so a score means something beside others on the same data only;
    where all wanted texts are equal nothing is rare, and it is 0.
    """
    if not pairs:
        return 0.0
    # In how many texts, not how often.
    seen = Counter(gram for _, wanted in pairs for order in ORDERS for gram in set(ngrams(wanted, order)))
    return sum(_score(found, wanted, seen, len(pairs)) for found, wanted in pairs) / len(pairs)


def _score(found: Sequence[str], wanted: Sequence[str], seen: Mapping[Gram, int], texts: int) -> float:
    # COCO's length of a text is its number of word pairs.
    shorter = max(0, len(found) - 1) - max(0, len(wanted) - 1)
    punished = math.exp(-(shorter**2) / (2 * SIGMA**2))
    return 10 * punished * sum(_cosine(found, wanted, order, seen, texts) for order in ORDERS) / len(ORDERS)


def _cosine(found: Sequence[str], wanted: Sequence[str], order: int, seen: Mapping[Gram, int], texts: int) -> float:
    """Of the two vectors, the found one cut to the wanted one: saying a word twice does not count twice."""
    own, other = (_weighted(ngrams(words, order), seen, texts) for words in (found, wanted))
    norms = math.hypot(*own.values()) * math.hypot(*other.values())
    common = sum(min(weight, other[gram]) * other[gram] for gram, weight in own.items() if gram in other)
    return common / norms if norms else 0.0


def _weighted(grams: Mapping[Gram, int], seen: Mapping[Gram, int], texts: int) -> dict[Gram, float]:
    return {gram: count * (math.log(texts) - math.log(max(1, seen.get(gram, 0)))) for gram, count in grams.items()}
