"""The same done with many tensors in few kernels.

torch's own optimizers and `clip_grad_norm_` are written with these functions, whose names are private (`_foreach_...`,
the same from torch 2.6 to 2.13). Where one is missing, the tensors have their turn one by one: the same numbers.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def copy(to: Sequence[Tensor], source: Sequence[Tensor]) -> None:
    """Copy each of `source` into its place in `to`."""
    together = _function("_foreach_copy_")
    if together is not None:
        together(to, source)
        return
    for each, other in zip(to, source, strict=True):
        each.copy_(other)


def multiply(tensors: Sequence[Tensor], factor: float) -> None:
    """Multiply each by `factor`, in place."""
    together = _function("_foreach_mul_")
    if together is not None:
        together(tensors, factor)
        return
    for each in tensors:
        each.mul_(factor)


def norms(tensors: Sequence[Tensor], order: float) -> Sequence[Tensor]:
    """Of each the norm of `order`."""
    together = _function("_foreach_norm")
    if together is not None:
        of_each: Sequence[Tensor] = together(tensors, order)
        return of_each
    return [torch.linalg.vector_norm(each, order) for each in tensors]


def _function(name: str) -> Any:
    return getattr(torch, name, None)
