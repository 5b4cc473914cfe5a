"""Attention masks that transformers creates or omits depending on values, which fake tensors do not have."""

from __future__ import annotations

import sys

from torch import Tensor


def set_up() -> None:
    """Tell transformers, if the recipe has imported it, that samples are not packed, so causal masks can be omitted.

    On real tensors transformers detects that from the positions; on fake ones it assumes packed sequences and creates a
    mask with an element for each pair of positions.
    """
    masking = sys.modules.get("transformers.masking_utils")
    if masking is not None and hasattr(masking, "find_packed_sequence_indices"):
        masking.__dict__["find_packed_sequence_indices"] = _find_no_packed_sequences


def _find_no_packed_sequences(position_ids: Tensor) -> None:  # noqa: ARG001 - the signature of transformers
    return None
