"""The shapes of matrix products, on which it depends how much of a GPU they use."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch

_aten = torch.ops.aten

_FIRST_FACTOR = {_aten.mm.default: 0, _aten.addmm.default: 1, _aten.bmm.default: 0, _aten.baddbmm.default: 1}
"""Where each operator has its first factor; the second follows."""

_INPUT = {_aten.convolution.default: 0, _aten.convolution_backward.default: 1}
"""Where a convolution has its input; its weight follows, and two places on its stride."""

_QUERY = {
    _aten._scaled_dot_product_flash_attention.default: 0,
    _aten._scaled_dot_product_efficient_attention.default: 0,
    _aten._scaled_dot_product_flash_attention_backward.default: 1,
    _aten._scaled_dot_product_efficient_attention_backward.default: 1,
}
"""Where fused attention has its query; the key follows."""


def shape(func: Any, args: tuple[Any, ...], result: Any) -> tuple[int, ...]:
    """How many, rows, columns and depth. Of attention those of its scores; of a convolution those of its forward pass
    and, where it is of images with a stride of one, the heights and widths of its kernel and of its result. Empty for
    what is no product."""
    if (first := _FIRST_FACTOR.get(func)) is not None:
        *many, rows, depth = args[first].shape
        return (many[0] if many else 1, rows, args[first + 1].shape[-1], depth)
    if (first := _QUERY.get(func)) is not None:
        query, key = args[first : first + 2]
        return (query.shape[0] * query.shape[1], query.shape[2], key.shape[2], query.shape[3])
    if (first := _INPUT.get(func)) is not None:
        values, weight = args[first : first + 2]
        output = result if first == 0 else args[0]
        outputs, depth, *kernel = weight.shape
        if output.shape[1] != outputs:  # a transposed one
            return ()
        groups = values.shape[1] // depth
        product = (groups, output.numel() // outputs, outputs // groups, weight.numel() // outputs)
        plain = len(kernel) == 2 and all(step == 1 for step in args[first + 3])
        return (*product, *kernel, *output.shape[2:]) if plain else product
    return ()


def launches(func: Any, args: tuple[Any, ...]) -> int:
    """Kernels one after another: a convolution's backward has one for each gradient that is wanted."""
    return sum(args[-1][:2]) if func is _aten.convolution_backward.default else 1


def counted(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], flops: int, shape: tuple[int, ...]) -> int:
    """The FLOPs that the kernels spend, where torch's own counter (2.13) has others.

    With a causal mask fused attention leaves out the blocks above the diagonal. Of a convolution in groups the counter
    takes the weight's gradient as if there were none.
    """
    if func in _QUERY:
        place = _causal(func)
        causal = place is not None and (args[place] if place < len(args) else kwargs.get("is_causal", False))
        return flops // 2 if causal else flops
    if func is _aten.convolution_backward.default and shape:
        return launches(func, args) * 2 * math.prod(shape[:4])
    return flops


@cache
def _causal(func: Any) -> int | None:
    names = [argument.name for argument in func._schema.arguments]
    return names.index("is_causal") if "is_causal" in names else None
