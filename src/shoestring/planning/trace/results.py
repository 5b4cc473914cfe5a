"""The results of operators that CUDA allocates, in the order in which it does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_ATEN: Any = torch.ops.aten


def on_device(func: Any, args: tuple[Any, ...], result: Any) -> Any:
    """Return the results that are on the device, in the order of their allocation."""
    select = _SELECTIONS.get(func)
    return select(args, result) if select else result


def storage_bytes(func: Any, args: tuple[Any, ...]) -> int | None:
    """Return the bytes of the result's storage if they are not those of the result.

    A mean or sum of losses has a storage for the losses of all elements, which its iterator has made of the undefined
    result (`BinaryOps.cpp: mse_loss`).
    """
    if func not in _LOSSES or (len(args) > _MODE and not args[_MODE]):
        return None
    return int(args[0].numel() * args[0].element_size())


_LOSSES = (_ATEN.mse_loss.default, _ATEN.smooth_l1_loss.default, _ATEN.huber_loss.default)
_MODE = 2


def _dropout(_args: tuple[Any, ...], result: Any) -> Any:
    """The mask comes first (`Dropout.cu: dropout_cuda`)."""
    return (result[1], result[0])


def _without_seed(_args: tuple[Any, ...], result: Any) -> Any:
    """Seed and offset are in host memory unless a graph is captured (`attention.cu: _efficient_attention_forward`)."""
    return result[:2]


def _without_bias_gradient(args: tuple[Any, ...], result: Any) -> Any:
    """The mask has a gradient if one is required (`attention_backward.cu: _efficient_attention_backward`)."""
    return result if args[10][3] else result[:3]


_SELECTIONS: dict[Any, Callable[[tuple[Any, ...], Any], Any]] = {
    _ATEN.native_dropout.default: _dropout,
    _ATEN._scaled_dot_product_efficient_attention.default: _without_seed,
    _ATEN._scaled_dot_product_efficient_attention_backward.default: _without_bias_gradient,
}
