"""Operations on many tensors in few kernels.

torch's own optimizers and `clip_grad_norm_` use these functions, whose names are private (`_foreach_...`, unchanged
from torch 2.10 to 2.13). If one is missing, the tensors are processed one by one, with equal results.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def add(tensors: Sequence[Tensor], terms: Sequence[Tensor]) -> None:
    """Add to each tensor its term, in place."""
    batched = _function("_foreach_add_")
    if batched is not None:
        batched(tensors, terms)
        return
    for tensor, term in zip(tensors, terms, strict=True):
        tensor.add_(term)


def copy(destinations: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy each source into its destination."""
    batched = _function("_foreach_copy_")
    if batched is not None:
        batched(destinations, sources)
        return
    for destination, source in zip(destinations, sources, strict=True):
        destination.copy_(source)


def lerp(tensors: Sequence[Tensor], ends: Sequence[Tensor], share: float) -> None:
    """Move each tensor towards its end by this share of the distance, in place and in the tensor's own type."""
    batched = _function("_foreach_lerp_")
    if batched is not None and all(tensor.dtype == end.dtype for tensor, end in zip(tensors, ends, strict=True)):
        batched(tensors, ends, share)
        return
    for tensor, end in zip(tensors, ends, strict=True):
        tensor.lerp_(end.to(tensor.dtype), share)


def multiply(tensors: Sequence[Tensor], factor: float) -> None:
    """Multiply each tensor by `factor`, in place."""
    batched = _function("_foreach_mul_")
    if batched is not None:
        batched(tensors, factor)
        return
    for tensor in tensors:
        tensor.mul_(factor)


def norms(tensors: Sequence[Tensor], order: float) -> Sequence[Tensor]:
    """Return the norm of `order` of each tensor."""
    batched = _function("_foreach_norm")
    if batched is not None:
        results: Sequence[Tensor] = batched(tensors, order)
        return results
    return [torch.linalg.vector_norm(tensor, order) for tensor in tensors]


def _function(name: str) -> Any:
    return getattr(torch, name, None)
