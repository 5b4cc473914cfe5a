"""Attention masks that transformers creates or omits depending on values, which fake tensors do not have."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextvars import ContextVar

from torch import Tensor

IS_PACKED: ContextVar[bool] = ContextVar("IS_PACKED", default=False)
"""Whether rows of the traced batch have several samples, which a mask separates."""


def set_up() -> None:
    """Tell transformers, if the recipe has imported it, whether samples are packed: if not, causal masks are omitted.

    On real tensors transformers detects that from the positions; on fake ones it assumes packed sequences and creates a
    mask with an element for each pair of positions.
    """
    masking = sys.modules.get("transformers.masking_utils")
    if masking is not None and hasattr(masking, "find_packed_sequence_indices"):
        find: Callable[[Tensor], Tensor | None] = masking.find_packed_sequence_indices
        masking.__dict__["find_packed_sequence_indices"] = lambda positions: (
            find(positions) if IS_PACKED.get() else None
        )
