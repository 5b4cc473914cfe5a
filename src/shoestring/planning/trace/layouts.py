"""The memory layout of images on the target: channels first (NCHW) or channels last (NHWC).

A convolution's results are channels last if its input or its weight is, because cuDNN then runs on that layout
(`cudnn_conv_suggest_memory_format` in `aten/src/ATen/native/ConvUtils.h`). The fake mode knows this only of CUDA
tensors, so the results on the simulated device are corrected here. GroupNorm on CUDA makes its input channels first
(`aten/src/ATen/native/group_norm.cpp`). All other operators keep the layout by themselves.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from shoestring.planning.trace.attention import CAPABILITY
from shoestring.planning.trace.simulated_device import KEY

_aten = torch.ops.aten

CONVOLUTION_INPUT = {_aten.convolution.default: 0, _aten.convolution_backward.default: 1}
"""The index of a convolution's input among its arguments; the weight follows it."""


_library = torch.library.Library("aten", "IMPL")


def set_up() -> None:
    """Redirect GroupNorm on the simulated device."""
    _library.impl("group_norm", _group_norm, f"Autograd{KEY}")


def is_channels_last(tensor: Tensor) -> bool:
    """Return whether torch takes a tensor of four dimensions as channels last.

    A size of one is ambiguous: such strides count as channels last if they are those that a conversion leaves. This
    follows `is_channels_last_strides_2d_s4` in `c10/core/MemoryFormat.h`.
    """
    sizes, strides = tensor.shape, tensor.stride()
    if tensor.dim() != 4 or not tensor.numel() or not strides[1]:
        return False
    smallest = 0
    for dimension in (1, 3, 2, 0):
        if strides[dimension] < smallest or (dimension == 0 and smallest == strides[1]):
            return False
        smallest = strides[dimension] * max(1, sizes[dimension])
    return True


def is_convolved_channels_last(values: Tensor, weight: Tensor) -> bool:
    """Return whether cuDNN convolves an input with a weight channels last."""
    return is_channels_last(values) or is_channels_last(weight)


def correct(func: Any, args: tuple[Any, ...], result: Any) -> Any:
    """Return a simulated operator's result in the layout that it has on the target."""
    first = CONVOLUTION_INPUT.get(func)
    if first is None or not is_convolved_channels_last(*args[first : first + 2]):
        return result
    return [_convert(tensor) for tensor in result] if isinstance(result, list | tuple) else _convert(result)


def _group_norm(
    values: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    _cudnn_enabled: bool = True,
) -> Tensor:
    if CAPABILITY.get():
        values = values.contiguous()
    samples, channels, *sizes = values.shape
    positions = math.prod(sizes)
    result: Tensor = torch.native_group_norm(values, weight, bias, samples, channels, positions, num_groups, eps)[0]
    return result


def _convert(tensor: Tensor | None) -> Tensor | None:
    if tensor is None or tensor.dim() != 4 or is_channels_last(tensor):
        return tensor
    return torch.empty_like(tensor, memory_format=torch.channels_last)
