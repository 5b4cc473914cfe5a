"""Mixtures of experts: the grouped product, and transformers' choice between it and its own operator, on the target."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry, register_flop_formula

from shoestring.planning.trace.attention import CAPABILITY

_library = torch.library.Library("aten", "IMPL")
_ALIGNMENT_BYTES = 16


def set_up() -> None:
    """Let grouped products have any type, and replace the check for them if the recipe has imported transformers.

    transformers 5.0 multiplies by groups in all types. That works on all GPUs, but the shape function of torch 2.10
    (`_meta_grouped_mm_common` in `torch/_meta_registrations.py`) accepts bf16 only.

    The original, `_can_use_grouped_mm` of `transformers/integrations/moe.py` (5.23), queries CUDA for the GPU's
    capability, and the simulated GPU is not a CUDA device.
    """
    product: Any = getattr(torch.ops.aten, "_grouped_mm", None)
    if product is not None:
        _library.impl("_grouped_mm", _grouped_product, "Meta", allow_override=True)
        if product not in flop_registry:
            register_flop_formula(product, get_raw=True)(_flops)
    experts = sys.modules.get("transformers.integrations.moe")
    if experts is not None and hasattr(experts, "_can_use_grouped_mm"):
        experts.__dict__["_can_use_grouped_mm"] = _can_use_grouped_mm_on_target


def _grouped_product(
    first: Tensor,
    second: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,  # noqa: ARG001 - the operator's argument, which torch does not support yet
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """Return the result, whose rows begin at multiples of 16 bytes (`GroupedMMUtils.h`)."""
    if first.dtype != second.dtype:
        raise RuntimeError(f"expected mat1 and mat2 to have the same dtype, but got: {first.dtype} != {second.dtype}")
    *outer, rows, columns = _result_shape(first, second, offs)
    dtype = out_dtype or first.dtype
    elements = _ALIGNMENT_BYTES // dtype.itemsize
    width = -(-columns // elements) * elements
    strides = (rows * width, width, 1)[-len(outer) - 2 :]
    return torch.empty_strided((*outer, rows, columns), strides, dtype=dtype, device=first.device)


def _result_shape(first: Tensor, second: Tensor, offs: Tensor | None) -> tuple[int, ...]:
    """Return the shape of the product: groups are divided along rows, columns or the inner dimension, or are given."""
    rows, columns = first.shape[-2], second.shape[-1]
    if first.dim() == second.dim() == 2:
        assert offs is not None
        return offs.shape[0], rows, columns
    return (first.shape[0], rows, columns) if first.dim() == second.dim() else (rows, columns)


def _flops(first: Tensor, second: Tensor, *_: Any, **__: Any) -> int:
    """Return the FLOPs of the products of all groups, which together have all rows, columns or inner positions."""
    inner = first.shape[-1]
    groups = first.shape[0] if first.dim() == second.dim() == 3 else 1
    return 2 * groups * first.shape[-2] * inner * second.shape[-1]


def _can_use_grouped_mm_on_target(_input: Tensor, weight: Tensor, _offsets: Tensor) -> bool:
    """Return whether the target has a grouped product: capability 8.0 and bf16.

    For other types torch itself multiplies one group after another into one result, as transformers' own operator does
    (torch's `aten/src/ATen/native/GroupedMMUtils.h: _grouped_mm_fallback`).
    """
    capability = CAPABILITY.get()
    return capability is not None and capability >= (8, 0) and weight.dtype == torch.bfloat16
