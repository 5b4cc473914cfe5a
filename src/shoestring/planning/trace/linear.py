"""Linear layers, whose bias the target adds in place where it does not add it in the product itself.

That is so for inputs of three dimensions that are not contiguous, as in `nn.MultiheadAttention` with `batch_first`, and
for those of more dimensions (`aten/src/ATen/native/Linear.cpp`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from shoestring.planning.trace import in_place
from shoestring.planning.trace.attention import CAPABILITY
from shoestring.planning.trace.simulated_device import KEY

_LINEAR = torch.ops.aten.linear.default

_library = torch.library.Library("aten", "IMPL")


def set_up() -> None:
    """Redirect linear layers on the simulated device."""
    _library.impl("linear", _linear, f"Autograd{KEY}")


def _linear(values: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    token = in_place.ADDS_IN_PLACE.set(CAPABILITY.get() is not None)
    try:
        result: Tensor = _LINEAR.decompose(values, weight, bias)
    finally:
        in_place.ADDS_IN_PLACE.reset(token)
    return result
