"""CUDA kernels that skip a conversion which other devices make."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from shoestring.planning.trace.simulated_device import KEY

_library = torch.library.Library("aten", "IMPL")


def set_up() -> None:
    """Let softmax read fp16 and write fp32 in one kernel, as CUDA's does; other devices copy the input first."""
    _library.impl("softmax.int", _half_to_float(torch.ops.aten._softmax), f"Autograd{KEY}")
    _library.impl("log_softmax.int", _half_to_float(torch.ops.aten._log_softmax), f"Autograd{KEY}")


def _half_to_float(operator: Any) -> Callable[..., Tensor]:
    """Return the composite operator of `aten/src/ATen/native/SoftMax.cpp`, with its branch for CUDA."""

    def kernel(values: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
        fused = values.dtype == torch.float16 and dtype == torch.float32
        if dtype is not None and not fused:
            values = values.to(dtype)
        result: Tensor = operator(values, dim, fused)
        return result

    return kernel
