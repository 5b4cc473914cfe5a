"""Cross-entropy over a large vocabulary without ever holding the logits of more than a few tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

IGNORED = -100
"""The label of a token that does not count, as in torch's `cross_entropy`."""


def chunked_cross_entropy(
    hidden: Tensor, weight: Tensor, labels: Tensor, chunk: int, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The sum of `cross_entropy(linear(hidden, weight, bias), labels)` over tokens, and how many counted.

    `hidden` (tokens, width), `weight` (vocabulary, width), `labels` (tokens,) int64, `bias` (vocabulary,). Logits exist
    for `chunk` tokens at a time, in at least fp32 as transformers has them (`loss/loss_utils.py`). In backward they
    are made again, which costs one product more: gradients made at once, in forward, would be smaller than fp16 can
    tell, as the loss is not scaled yet. The weight's gradient is summed over chunks in the weight's own type.
    """
    if torch.is_autocast_enabled(hidden.device.type):
        dtype = torch.get_autocast_dtype(hidden.device.type)
        hidden, weight, bias = hidden.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
    run: Any = _ChunkedCrossEntropy.apply
    total: Tensor = run(hidden, weight, bias, labels, chunk)
    return total, (labels != IGNORED).sum()


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, chunk: int
    ) -> Tensor:
        with torch.autocast(hidden.device.type, enabled=False):
            total = hidden.new_zeros((), dtype=_wide(hidden))
            for here in _chunks(labels, chunk):
                total += _sum(_logits(hidden[here], weight, bias), labels[here])
        context.save_for_backward(hidden, weight, bias, labels)
        context.chunk = chunk
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, labels = context.saved_tensors
        wanted = context.needs_input_grad
        of_hidden = torch.empty_like(hidden) if wanted[0] else None
        of_weight = torch.zeros_like(weight) if wanted[1] else None
        of_bias = torch.zeros_like(bias) if wanted[2] else None
        for here in _chunks(labels, context.chunk):
            of_logits = _gradient(_logits(hidden[here], weight, bias), labels[here], gradients[0]).to(weight.dtype)
            if of_hidden is not None:
                torch.mm(of_logits, weight, out=of_hidden[here])
            if of_weight is not None:
                of_weight.addmm_(of_logits.t(), hidden[here])
            if of_bias is not None:
                of_bias += of_logits.sum(dim=0)
            del of_logits
        return of_hidden, of_weight, of_bias, None, None


# Both of these work in the logits' place: log_softmax and logsumexp would each make another tensor of their size.


def _sum(logits: Tensor, labels: Tensor) -> Tensor:
    logits -= logits.amax(dim=-1, keepdim=True)
    counted = labels != IGNORED
    chosen = logits.gather(-1, labels.where(counted, 0)[:, None]).squeeze(-1)
    return ((logits.exp_().sum(dim=-1).log_() - chosen) * counted).sum()


def _gradient(logits: Tensor, labels: Tensor, scale: Tensor) -> Tensor:
    """Of the sum, times `scale`, by the logits, in their place: softmax less one at the label."""
    logits -= logits.amax(dim=-1, keepdim=True)
    logits /= logits.exp_().sum(dim=-1, keepdim=True)
    counted = labels != IGNORED
    logits.scatter_add_(-1, labels.where(counted, 0)[:, None], -torch.ones_like(labels, dtype=logits.dtype)[:, None])
    return logits.mul_((counted * scale)[:, None])


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return functional.linear(hidden, weight, bias).to(_wide(hidden))


def _wide(like: Tensor) -> torch.dtype:
    return torch.float64 if like.dtype == torch.float64 else torch.float32


def _chunks(labels: Tensor, chunk: int) -> Iterator[slice]:
    return (slice(start, start + chunk) for start in range(0, labels.shape[0], chunk))
