"""Mixtures of experts: transformers' choice between torch's grouped product and its own operator, as on the target."""

from __future__ import annotations

import sys

import torch
from torch import Tensor

from shoestring.planning.trace.attention import CAPABILITY


def set_up() -> None:
    """Replace the check for grouped products if the recipe has imported transformers.

    The original, `_can_use_grouped_mm` of `transformers/integrations/moe.py` (5.23), queries CUDA for the GPU's
    capability, and the simulated GPU is not a CUDA device.
    """
    experts = sys.modules.get("transformers.integrations.moe")
    if experts is not None and hasattr(experts, "_can_use_grouped_mm"):
        experts.__dict__["_can_use_grouped_mm"] = _can_use_grouped_mm_on_target


def _can_use_grouped_mm_on_target(_input: Tensor, weight: Tensor, _offsets: Tensor) -> bool:
    """Return whether the target has a grouped product: capability 8.0 and bf16.

    For other types torch itself multiplies one group after another into one result, as transformers' own operator does
    (torch's `aten/src/ATen/native/GroupedMMUtils.h: _grouped_mm_fallback`).
    """
    capability = CAPABILITY.get()
    return capability is not None and capability >= (8, 0) and weight.dtype == torch.bfloat16
