"""torch's fused attention for models whose heads share keys and values.

transformers asks torch to share them inside the kernel (`enable_gqa`), which memory-efficient attention, the one a
Turing GPU has, does not take; torch then falls back to plain mathematics with its square of scores. So keys and values
are repeated for each head first.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "sdpa_repeated"


def register() -> None:
    """Make the name known to transformers."""
    AttentionInterface.register(NAME, _attend)
    AttentionMaskInterface.register(NAME, sdpa_mask)


class _OneHeadEach:
    """What the function for any attention asks a module: these heads share nothing any more."""

    def __init__(self, module: nn.Module) -> None:
        self.is_causal = getattr(module, "is_causal", True)


def _attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    groups = getattr(module, "num_key_value_groups", 1)
    alone: Any = _OneHeadEach(module)
    return sdpa_attention_forward(
        alone, query, repeat_kv(key, groups), repeat_kv(value, groups), attention_mask, **options
    )
