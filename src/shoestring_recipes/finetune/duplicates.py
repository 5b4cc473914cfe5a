"""Near-duplicates between two sets of texts: the exact Jaccard similarity of their sequences of five words."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Shingles: TypeAlias = NDArray[numpy.int64]

WORDS = 5
"""The words of a sequence; a shorter text is one sequence."""
THRESHOLD = 0.8
"""The share of the sequences of either text that near-duplicates have in common."""

# Chinese and Japanese have no spaces, so each of their characters is a word.
_WORD = re.compile("[\u3040-\u30ff\u3400-\u9fff]|[^\\s\u3040-\u30ff\u3400-\u9fff]+")
_FACTOR = 0x5851F42D4C957F2D  # of Knuth's generator MMIX


def count_near_duplicates(texts: Sequence[str], other_texts: Sequence[str]) -> int:
    """Return how many of `texts` are near-duplicates of at least one of `others`."""
    sequences = [_shingles(text) for text in texts]
    known = numpy.unique(numpy.concatenate([*sequences, numpy.empty(0, numpy.int64)]))
    index = _Index(other_texts, known)
    return sum(index.has_similar(numpy.searchsorted(known, sequence)) for sequence in sequences)


class _Index:
    """The sequences of some texts, by text and by sequence. Only `known` sequences are kept."""

    def __init__(self, texts: Sequence[str], known: Shingles) -> None:
        self._counts = numpy.zeros(len(texts), numpy.int64)
        known_positions = []
        for number, text in enumerate(texts):
            sequences = _shingles(text)
            self._counts[number] = len(sequences)
            positions = numpy.searchsorted(known, sequences)
            positions[positions == len(known)] = 0
            known_positions.append(positions[known[positions] == sequences] if len(known) else positions[:0])
        self._text_starts = numpy.cumsum([0, *map(len, known_positions)])
        self._by_text = numpy.concatenate([*known_positions, numpy.empty(0, numpy.int64)])
        text_numbers = numpy.repeat(numpy.arange(len(texts)), numpy.diff(self._text_starts))
        self._by_sequence = text_numbers[numpy.argsort(self._by_text, kind="stable")]
        self._text_counts = numpy.bincount(self._by_text, minlength=len(known))
        self._sequence_starts = numpy.concatenate([[0], numpy.cumsum(self._text_counts)])
        self._marks = numpy.zeros(len(known), numpy.bool_)

    def has_similar(self, sequences: Shingles) -> bool:
        """Return whether a text is similar to one of the index; `sequences` are positions in `known`."""
        # Of similar texts, the one has at least one of the rarest sequences of the other.
        common = math.ceil(THRESHOLD * len(sequences))
        rare = sequences[numpy.argsort(self._text_counts[sequences], kind="stable")][: len(sequences) - common + 1]
        texts = [self._by_sequence[self._sequence_starts[item] : self._sequence_starts[item + 1]] for item in rare]
        candidates, rare_counts = numpy.unique(numpy.concatenate(texts), return_counts=True)
        # Both sets of sequences, less the common ones, are their union.
        needed = THRESHOLD / (1 + THRESHOLD) * (len(sequences) + self._counts[candidates])
        candidates = candidates[rare_counts + len(sequences) - len(rare) >= needed - 1e-6]
        self._marks[sequences] = True
        similar = any(self._similarity(text, len(sequences)) >= THRESHOLD for text in candidates)
        self._marks[sequences] = False
        return similar

    def _similarity(self, text: int, count: int) -> float:
        """Return the Jaccard similarity of a text of the index and the marked sequences, of which there are `count`."""
        common = int(self._marks[self._by_text[self._text_starts[text] : self._text_starts[text + 1]]].sum())
        return common / (count + int(self._counts[text]) - common)


def _shingles(text: str) -> Shingles:
    """Return the hashes of the different sequences of words in a text, at least one."""
    text = text.casefold()
    words = text.split() if text.isascii() else _WORD.findall(text)
    # Python's hashes differ from process to process, but not which of them are equal.
    hashes = numpy.fromiter(map(hash, words), numpy.int64, len(words))
    count = max(1, len(words) - WORDS + 1)
    result = numpy.zeros(count, numpy.int64)
    for place in range(min(WORDS, len(words))):
        result = result * _FACTOR + hashes[place : place + count]
        result ^= result >> 29
    return numpy.unique(result)
