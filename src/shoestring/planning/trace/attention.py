"""Attention as the target would run it: the kernel that `scaled_dot_product_attention` chooses on the target.

The choice follows torch's `sdp_utils.cpp`: flash attention needs compute capability 8.0, a 16-bit type and no mask;
memory-efficient attention needs 5.0, and a mask whose last dimension is contiguous, which T5's relative positions are
not; a CPU has its own flash kernel, without dropout. Everything else runs torch's math implementation, which holds the
full matrix of scores, in fp32.
"""

from __future__ import annotations

from contextvars import ContextVar

import torch
from torch import Tensor

from shoestring.planning.trace import in_place
from shoestring.planning.trace.simulated_device import KEY

CAPABILITY: ContextVar[tuple[int, int] | None] = ContextVar("capability", default=None)
"""The target's compute capability; None for a CPU."""

_MASK_ALIGNMENT = 8
"""Values. The memory-efficient kernel takes masks with strides that are multiples of it (`attention.cpp:
preprocess_mask`)."""

grouped_in_math: set[tuple[int, int]] = set()
"""The numbers of heads of queries and of keys in the attentions of a trace that share keys in torch's math
implementation. A recorder empties it when it begins."""

_HALF = (torch.float16, torch.bfloat16)

_library = torch.library.Library("aten", "IMPL")


def set_up() -> None:
    """Redirect attention on the simulated device, also when activation checkpointing recomputes it in backward."""
    _library.impl("scaled_dot_product_attention", _attention, f"Autograd{KEY}")


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    aten = torch.ops.aten
    if _can_use_flash(query, value, attn_mask):
        results = aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, scale=scale)
    elif _can_use_efficient(query, key, value, attn_mask):
        needs_gradient = torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value))
        results = aten._scaled_dot_product_efficient_attention(
            query,
            key,
            value,
            _expand_mask(query, key, attn_mask, alignment=_MASK_ALIGNMENT),
            needs_gradient,
            dropout_p,
            is_causal,
            scale=scale,
        )
    elif CAPABILITY.get() is None and query.dim() == 4 and not dropout_p and not _needs_gradient(attn_mask):
        results = aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, dropout_p, is_causal, attn_mask=_expand_mask(query, key, attn_mask), scale=scale
        )
    else:
        if enable_gqa and CAPABILITY.get() is not None:
            grouped_in_math.add((query.shape[1], key.shape[1]))
        token = in_place.ADDS_IN_PLACE.set(CAPABILITY.get() is not None)
        try:
            results = aten._scaled_dot_product_attention_math(
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
            )
        finally:
            in_place.ADDS_IN_PLACE.reset(token)
    output: Tensor = results[0]
    return output


def notes() -> tuple[str, ...]:
    """Return a note on each shape of heads that share keys without a fused kernel."""
    return tuple(
        f"{queries} heads share the keys of {keys} (enable_gqa), for which torch has no fused attention here: each "
        "layer holds the scores of all pairs of positions; attention that repeats the keys for each head does not"
        for queries, keys in sorted(grouped_in_math)
    )


def _can_use_flash(query: Tensor, value: Tensor, mask: Tensor | None) -> bool:
    capability = CAPABILITY.get()
    width = query.shape[-1]
    return (
        capability is not None
        and capability >= (8, 0)
        and query.dim() == 4
        and query.dtype in _HALF
        and mask is None
        # torch pads other widths; here memory-efficient attention is used instead, which takes about as much memory.
        and width == value.shape[-1]
        and width <= 256
        and width % 8 == 0
    )


def _can_use_efficient(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> bool:
    capability = CAPABILITY.get()
    if mask is not None and mask.stride(-1) != 1:
        return False
    if capability is None or capability < (5, 0) or query.dim() != 4:
        return False
    if query.dtype == torch.bfloat16 and capability < (8, 0):
        return False
    alignment = 8 if query.dtype in _HALF else 4 if capability >= (8, 0) else 1
    same_heads = query.shape[1] == key.shape[1] == value.shape[1]
    return same_heads and not any(x.shape[-1] % alignment for x in (query, value))


def _needs_gradient(mask: Tensor | None) -> bool:
    """Return whether the mask needs a gradient (T5's relative positions), which the CPU's flash kernel lacks."""
    return mask is not None and mask.requires_grad and torch.is_grad_enabled()


def _expand_mask(query: Tensor, key: Tensor, mask: Tensor | None, *, alignment: int = 1) -> Tensor | None:
    """Return the mask in the form that the kernel takes: an additive term for each pair of positions.

    Torch pads a mask whose strides are no multiples of `alignment`, before it is expanded to all samples and heads.
    """
    if mask is None:
        return None
    if mask.dtype == torch.bool:
        mask = _additive(mask, query)
    if any(stride % alignment for stride in mask.stride()[:-1]):
        size = mask.shape[-1]
        mask = torch.nn.functional.pad(mask, (0, alignment - size % alignment))[..., :size]
    return mask.expand(*query.shape[:3], key.shape[2])


def _additive(mask: Tensor, query: Tensor) -> Tensor:
    """Return a boolean mask as a term (`convert_boolean_attn_mask_` in torch's `transformers/attention.cpp`)."""
    allowed = torch.scalar_tensor(0.0, dtype=query.dtype, device=query.device)
    forbidden = torch.scalar_tensor(float("-inf"), dtype=query.dtype, device=query.device)
    result = torch.where(mask, allowed, forbidden)
    del forbidden  # C++ destroys them in this order
    return result
