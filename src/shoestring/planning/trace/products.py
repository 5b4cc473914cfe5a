"""The shapes of matrix products, which determine how much of a GPU they use."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from shoestring.planning.trace.convolution import ConvolutionShape
from shoestring.planning.trace.layouts import CONVOLUTION_INPUT, is_convolved_channels_last

_aten = torch.ops.aten

_FIRST_FACTOR = {_aten.mm.default: 0, _aten.addmm.default: 1, _aten.bmm.default: 0, _aten.baddbmm.default: 1}
"""The index of each operator's first factor among its arguments; the second factor follows."""

_QUERY = {
    _aten._scaled_dot_product_flash_attention.default: 0,
    _aten._scaled_dot_product_efficient_attention.default: 0,
    _aten._scaled_dot_product_flash_attention_for_cpu.default: 0,
    _aten._scaled_dot_product_flash_attention_backward.default: 1,
    _aten._scaled_dot_product_efficient_attention_backward.default: 1,
    _aten._scaled_dot_product_flash_attention_for_cpu_backward.default: 1,
}
"""The index of fused attention's query; the key follows."""


def shape(func: Any, args: tuple[Any, ...], result: Any) -> tuple[int, ...]:
    """Return the batch size, rows, columns and depth of a matrix product, or an empty tuple for other operators.

    For attention they are those of its scores. A convolution of sequences or images has a `ConvolutionShape`, one of
    volumes the product of its forward pass.
    """
    if (first := _FIRST_FACTOR.get(func)) is not None:
        *batch, rows, depth = args[first].shape
        return (batch[0] if batch else 1, rows, args[first + 1].shape[-1], depth)
    if (first := _QUERY.get(func)) is not None:
        query, key = args[first : first + 2]
        return (query.shape[0] * query.shape[1], query.shape[2], key.shape[2], query.shape[3])
    if (first := CONVOLUTION_INPUT.get(func)) is not None:
        values, weight = args[first : first + 2]
        is_transposed = args[first + 6]
        output = result if first == 0 else args[0]
        return () if is_transposed else _convolution_shape(values, weight, output, args[first + 3])
    return ()


def shares_heads(func: Any, args: tuple[Any, ...]) -> bool:
    """Return whether queries of fused attention share heads of keys, which torch's counter of FLOPs does not know."""
    first = _QUERY.get(func)
    return first is not None and args[first].shape[1] != args[first + 1].shape[1]


def _convolution_shape(values: Tensor, weight: Tensor, output: Tensor, stride: Sequence[int]) -> tuple[int, ...]:
    outputs, depth, *kernel = weight.shape
    groups = values.shape[1] // depth
    product = (groups, output.numel() // outputs, outputs // groups, weight.numel() // outputs)
    if len(kernel) > 2:
        return product
    steps = (*stride, *stride)[: len(kernel)]
    sizes = (*_pair(kernel), *_pair(output.shape[2:]), *_pair(steps))
    return ConvolutionShape(*product, *sizes, int(is_convolved_channels_last(values, weight)))


def _pair(sizes: Sequence[int]) -> tuple[int, int]:
    """Return height and width; a sequence is an image of height one."""
    return sizes[0] if len(sizes) > 1 else 1, sizes[-1]


def launches(func: Any, args: tuple[Any, ...]) -> int:
    """Return the number of consecutive kernels: a convolution's backward has one for each required gradient."""
    return sum(args[-1][:2]) if func is _aten.convolution_backward.default else 1


def correct_flops(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], flops: int, shape: tuple[int, ...]) -> int:
    """Return the FLOPs that the kernels execute, given the count of torch's own counter (2.13), which differs twice.

    With a causal mask, fused attention skips the blocks above the diagonal. For the weight's gradient of a grouped
    convolution the counter ignores the groups.
    """
    if func in _QUERY:
        if not flops:  # what torch's counter does not know: two products, and five in backward
            flops = (5 if _QUERY[func] else 2) * 2 * math.prod(shape)
        index = _causal_index(func)
        causal = index is not None and (args[index] if index < len(args) else kwargs.get("is_causal", False))
        return flops // 2 if causal else flops
    if func is _aten.convolution_backward.default and shape:
        return launches(func, args) * 2 * math.prod(shape[:4])
    return flops


@cache
def _causal_index(func: Any) -> int | None:
    """Return the index of the argument `is_causal`; None if the operator has no such argument."""
    names = [argument.name for argument in func._schema.arguments]
    return names.index("is_causal") if "is_causal" in names else None
