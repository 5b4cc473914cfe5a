"""An index that an embedding does not have, such as a token id beyond the vocabulary: its value, from the traceback.

torch says "index out of range in self" on a CPU. On a GPU the context is lost, and nothing can be read any more.
"""

import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shoestring.base.errors import RunError

DEVICE_ASSERT = "device-side assert triggered"
"""A part of CUDA's message for what a kernel has checked, most often an index."""
DEVICE_ASSERT_HINT = (
    "an index on the GPU is probably outside of its table: a token id beyond the vocabulary, or a class that the model "
    "does not have; the same command with --on cpu names it"
)


@dataclass(frozen=True, kw_only=True)
class EmbeddingIndex:
    """An index and the table that does not have it."""

    value: int
    rows: int
    """The rows of the table, which are counted from 0: the size of a vocabulary, or the number of positions."""
    place: tuple[int, ...]
    """Where the value is among the indices of the batch."""

    def error(self, problems: Sequence[str], subject: str = "") -> RunError:
        """Return the error, whose message begins with `subject`."""
        return RunError(
            f"{subject}the index {self.value} is outside of an embedding with {self.rows} rows",
            problems=problems,
            hint=f"the indices are 0 to {self.rows - 1}: compare the tokenizer's vocabulary with the model's, the "
            "largest class, or the longest sequence with the model's positions",
        )


def find_embedding_index(error: BaseException) -> EmbeddingIndex | None:
    """Return the first index outside of an embedding that the exception is of; None if it is another exception."""
    if not isinstance(error, IndexError):
        return None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        indices, weight = frame.f_locals.get("input"), frame.f_locals.get("weight")
        if frame.f_code.co_name == "embedding" and hasattr(indices, "nonzero"):
            return _first_outside(indices, weight)
    return None


def _first_outside(indices: Any, weight: Any) -> EmbeddingIndex | None:
    """Return the first of the indices, a tensor, that the table `weight` does not have."""
    rows = int(weight.shape[0])
    places = ((indices < 0) | (indices >= rows)).nonzero().tolist()
    if not places:
        return None
    place = tuple(places[0])
    return EmbeddingIndex(value=int(indices[place]), rows=rows, place=place)
