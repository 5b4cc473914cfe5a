"""Mixtures of experts: whether transformers takes torch's grouped product or its own operator, as on the target."""

from __future__ import annotations

import sys

import torch
from torch import Tensor

from shoestring.trace.attention import CAPABILITY


def set_up() -> None:
    """Where a recipe has imported transformers: it asks CUDA for the GPU's capability, and the pretend GPU is not CUDA.

    The function is `_can_use_grouped_mm` of `transformers/integrations/moe.py` (5.23).
    """
    experts = sys.modules.get("transformers.integrations.moe")
    if experts is not None and hasattr(experts, "_can_use_grouped_mm"):
        experts.__dict__["_can_use_grouped_mm"] = _in_one_product


def _in_one_product(_input: Tensor, weight: Tensor, _offsets: Tensor) -> bool:
    """From 8.0 on in bf16. In other types torch, too, multiplies group after group into one result, which is what
    transformers' own operator does (torch's `aten/src/ATen/native/GroupedMMUtils.h: _grouped_mm_fallback`).
    """
    capability = CAPABILITY.get()
    return capability is not None and capability >= (8, 0) and weight.dtype == torch.bfloat16
