"""Rows as tokens, with a mark on each token that is learned, and datasets of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shoestring_recipes.finetune.rows import Row


@dataclass(frozen=True, slots=True)
class Sample:
    """The tokens of a row, cut to `seq_len`."""

    tokens: NDArray[numpy.int32]
    """(length,): what the model receives."""
    loss_mask: NDArray[numpy.bool_]
    """(length,): whether the token is learned, that is, predicted from the tokens before it in the loss. The first
    token is never learned."""
    full_length: int
    """The length before the sample was cut."""

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def is_learnable(self) -> bool:
        """Whether a token is learned, which a cut may have prevented."""
        return bool(self.loss_mask.any())


@dataclass(frozen=True, slots=True)
class PairSample:
    """The preferred and the rejected answer, each after the prompt; only the tokens of the answers are learned."""

    chosen: Sample
    rejected: Sample

    def __len__(self) -> int:
        return max(len(self.chosen), len(self.rejected))

    @property
    def is_learnable(self) -> bool:
        """Whether both answers have a learned token."""
        return self.chosen.is_learnable and self.rejected.is_learnable


class Samples:
    """A map-style dataset of samples that are in memory, with their rows for people."""

    def __init__(self, samples: Sequence[Sample | PairSample], rows: Sequence[Row]) -> None:
        self.samples, self.rows = samples, rows

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Sample | PairSample:
        return self.samples[index]
