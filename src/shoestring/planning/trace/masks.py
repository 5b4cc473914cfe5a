"""Attention masks that transformers creates or omits depending on values, which fake tensors do not have."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextvars import ContextVar
from types import ModuleType

from torch import Tensor

IS_PACKED: ContextVar[bool] = ContextVar("IS_PACKED", default=False)
"""Whether rows of the traced batch have several samples, which a mask separates."""


def set_up() -> None:
    """Tell transformers, if the recipe has imported it, what it would see in the values of a mask or of positions."""
    masking = sys.modules.get("transformers.masking_utils")
    if masking is not None:
        _set_packing(masking)
        _keep_masks_of_padding(masking)
    older = sys.modules.get("transformers.modeling_attn_mask_utils")
    if older is not None and not hasattr(older, "is_tracing"):
        older.__dict__["is_torchdynamo_compiling"] = lambda: True  # see `_keep_masks_of_padding`
    models = sys.modules.get("transformers.modeling_utils")
    if models is not None and not hasattr(models, "is_tracing"):
        # transformers 4.56 looks at the values of tokens, to warn that they may be padding.
        models.PreTrainedModel.warn_if_padding_and_no_attention_mask = lambda *_: None


def _set_packing(masking: ModuleType) -> None:
    """Let causal masks be omitted if samples are not packed.

    On real tensors transformers detects that from the positions; on fake ones it assumes packed sequences and creates a
    mask with an element for each pair of positions.
    """
    if hasattr(masking, "find_packed_sequence_indices"):
        find: Callable[[Tensor], Tensor | None] = masking.find_packed_sequence_indices
        masking.__dict__["find_packed_sequence_indices"] = lambda positions: (
            find(positions) if IS_PACKED.get() else None
        )


def _keep_masks_of_padding(masking: ModuleType) -> None:
    """Let transformers 4.56 keep a mask of padding without looking at its values.

    Later versions ask `is_tracing`, which knows fake tensors, and keep it as well.
    """
    if hasattr(masking, "_ignore_causal_mask_sdpa") and not hasattr(masking, "is_tracing"):
        ignore: Callable[..., bool] = masking._ignore_causal_mask_sdpa
        masking.__dict__["_ignore_causal_mask_sdpa"] = lambda padding_mask, *args, **kwargs: (
            padding_mask is None and ignore(padding_mask, *args, **kwargs)
        )
