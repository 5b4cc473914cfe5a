"""Attention masks that transformers makes or leaves out by looking at values, which a pretend tensor has not."""

from __future__ import annotations

import sys

from torch import Tensor


def set_up() -> None:
    """Where a recipe has imported transformers: samples are not packed sequences, so causal masks can be left out.

    On real tensors transformers finds that out from the positions; on fake ones it assumes the contrary and makes a
    mask with a number for each pair of positions.
    """
    masking = sys.modules.get("transformers.masking_utils")
    if masking is not None and hasattr(masking, "find_packed_sequence_indices"):
        masking.__dict__["find_packed_sequence_indices"] = _not_packed


def _not_packed(position_ids: Tensor) -> None:  # noqa: ARG001 - in the place of a function that looks at them
    return None
