"""torch's fused attention for models whose heads share keys and values.

transformers lets torch share them inside the kernel (`enable_gqa`). Memory-efficient attention, the only fused kernel
of Turing GPUs, does not support this, and torch falls back to plain operators with a full score matrix. Therefore keys
and values are repeated for each head first.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "sdpa_repeated"


def register() -> None:
    """Register this attention with transformers as `NAME`."""
    AttentionInterface.register(NAME, _attend)
    AttentionMaskInterface.register(NAME, sdpa_mask)


class _UngroupedModule:
    """The attributes of an attention module that `sdpa_attention_forward` reads, without groups of heads."""

    def __init__(self, module: nn.Module) -> None:
        self.is_causal = getattr(module, "is_causal", True)


def _attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    groups = getattr(module, "num_key_value_groups", 1)
    ungrouped: Any = _UngroupedModule(module)
    return sdpa_attention_forward(
        ungrouped, query, repeat_kv(key, groups), repeat_kv(value, groups), attention_mask, **options
    )
