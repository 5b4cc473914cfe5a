"""Layers with 4-bit weights of bitsandbytes or inside adapters of peft, as plain weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def is_packed(layer: nn.Module) -> bool:
    """Return whether `layer` has a 4-bit weight: one of bitsandbytes, or a placeholder for estimates."""
    weight = getattr(layer, "weight", None)
    return isinstance(weight, Tensor) and weight.dtype == torch.uint8 and hasattr(layer, "in_features")


def unpacked_weight(layer: Any) -> Tensor:
    """Return the weight of a layer, (outputs, inputs); a 4-bit one as its forward multiplies with it."""
    weight: Tensor = layer.weight.detach()
    if not is_packed(layer):
        return weight
    from bitsandbytes.functional import dequantize_4bit

    unpacked: Tensor = dequantize_4bit(weight, layer.weight.quant_state)
    return unpacked


def without_adapters(name: str) -> str:
    """Return the name of a weight as it is without the modules that peft puts around others, also several."""
    return ".".join(part for part in name.split(".") if part not in ("base_layer", "token_adapter"))
