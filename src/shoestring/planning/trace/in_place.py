"""Operators that write into an operand on the target, while under a dispatch mode torch has them return a new tensor.

torch's C++ code takes another path if an operand is a subclass of Tensor or a dispatch mode is active
(`isTensorSubclassLike` in `aten/src/ATen/TensorSubclassLikeUtils.h`), as for fake tensors.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

_ATEN: Any = torch.ops.aten

ADDS_IN_PLACE: ContextVar[bool] = ContextVar("ADDS_IN_PLACE", default=False)
"""Whether a function of torch runs that adds in place: the math implementation of attention its mask to the scores
(`attention.cpp: _scaled_dot_product_attention_math`), a linear layer its bias to the product (`Linear.cpp: linear`)."""

_ADD = _ATEN.add.Tensor

_SCATTERING = (_ATEN.index_put.default, _ATEN.scatter_add.default, _ATEN.scatter.src)
"""Operators of backward that write into a tensor of zeros (`FunctionsManual.cpp: index_backward`,
`TensorAdvancedIndexing.cpp: gather_backward`, `ReduceOps.cpp: value_selecting_reduction_backward_symint`)."""

_OF_NODES = {
    _ATEN.sub.Tensor: "BinaryCrossEntropyWithLogitsBackward0",
    _ATEN.mul.Tensor: "BinaryCrossEntropyWithLogitsBackward0",
}
"""Operators of one node of autograd alone (`FunctionsManual.cpp: binary_cross_entropy_with_logits_backward`)."""


_IN_BACKWARD = {_ADD, *_SCATTERING, *_OF_NODES}
_NO_BACKWARD = -1
"""The number of autograd's work while no backward pass runs."""


def operand(func: Any, args: tuple[Any, ...]) -> Tensor | None:
    """Return the operand into which the target writes the result if nothing else needs it; None if it does not."""
    if func is _ADD and ADDS_IN_PLACE.get():
        return _tensor(args)
    # Where gradients are recorded, a backward pass recomputes a forward, or is to have a backward itself.
    in_backward = torch._C._current_graph_task_id() != _NO_BACKWARD and not torch.is_grad_enabled()
    if func not in _IN_BACKWARD or not in_backward:
        return None
    if func is _ADD:
        return _accumulated(args)
    if func in _SCATTERING:
        return _tensor(args)
    node: Any = torch._C._current_autograd_node() if func in _OF_NODES else None
    return _tensor(args) if node is not None and node.name() == _OF_NODES[func] else None


def _accumulated(args: tuple[Any, ...]) -> Tensor | None:
    """Return the gradient to which autograd adds another one, if it may do so in place.

    The gradient must not be a view, whose base holds the same storage, and must fill its storage
    (`can_accumulate_inplace` in `torch/csrc/autograd/input_buffer.cpp`).
    """
    gradient = _tensor(args)
    if gradient is None or gradient._is_view() or not _is_dense(gradient):
        return None
    return gradient


def _is_dense(tensor: Tensor) -> bool:
    """Return whether the elements lie one beside the other, none of them twice."""
    extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return extent == tensor.numel()


def _tensor(args: tuple[Any, ...]) -> Tensor | None:
    return args[0] if isinstance(args[0], Tensor) else None
