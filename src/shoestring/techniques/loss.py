"""Cross-entropy over a large vocabulary that stores the logits of only a few tokens at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

IGNORED = -100
"""The label of an ignored token, as in torch's `cross_entropy`."""


def chunked_cross_entropy(
    hidden: Tensor, weight: Tensor, labels: Tensor, chunk: int, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the sum of `cross_entropy(linear(hidden, weight, bias), labels)` over tokens, and how many tokens count.

    The arguments are those of `chunked_token_losses`.
    """
    losses = chunked_token_losses(hidden, weight, labels, chunk, bias)
    return losses.sum(), (labels != IGNORED).sum()


def chunked_token_losses(
    hidden: Tensor, weight: Tensor, labels: Tensor, chunk: int, bias: Tensor | None = None
) -> Tensor:
    """Return `cross_entropy(linear(hidden, weight, bias), labels)` of each token, 0 for an ignored one: (tokens,).

    `hidden` (tokens, width), `weight` (vocabulary, width), `labels` (tokens,) int64, `bias` (vocabulary,). Logits exist
    for `chunk` tokens at a time, in at least fp32 as in transformers (`loss/loss_utils.py`). Backward recomputes them,
    at the cost of one more product. Only if the weight is frozen, forward computes the gradient of `hidden` as well,
    except in fp16, in which it would underflow, because the loss is not scaled yet. The weight's gradient is summed
    over chunks in the weight's type.
    """
    # Of a model that is divided among devices, a weight that is tied to the embedding may be elsewhere.
    weight, labels = weight.to(hidden.device), labels.to(hidden.device)
    device = hidden.device.type
    dtype = torch.promote_types(hidden.dtype, weight.dtype)
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
    if not hidden.dtype == weight.dtype == dtype:
        hidden, weight, bias = hidden.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
    run: Any = _ChunkedCrossEntropy.apply
    losses: Tensor = run(hidden, weight, bias, labels, chunk)
    return losses


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, chunk: int
    ) -> Tensor:
        with torch.autocast(hidden.device.type, enabled=False):
            losses = hidden.new_empty(labels.shape, dtype=_accumulation_dtype(hidden))
            context.gradient = None
            if context.needs_input_grad == (True, False, False, False, False) and hidden.dtype != torch.float16:
                context.gradient = torch.empty_like(hidden)
            for rows in _chunks(labels, chunk):
                logits = _logits(hidden[rows], weight, bias)
                if context.gradient is None:
                    losses[rows] = _losses(logits, labels[rows])
                else:
                    losses[rows], logits_gradient = _losses_and_gradients(logits, labels[rows])
                    torch.mm(logits_gradient.to(weight.dtype), weight, out=context.gradient[rows])
                    del logits_gradient
                del logits
        if context.gradient is None:
            context.save_for_backward(hidden, weight, bias, labels)
            context.chunk = chunk
        return losses

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        if context.gradient is not None:
            return (context.gradient * gradients[0][:, None]).to(context.gradient.dtype), None, None, None, None
        hidden, weight, bias, labels = context.saved_tensors
        needed = context.needs_input_grad
        hidden_gradient = torch.empty_like(hidden) if needed[0] else None
        weight_gradient = torch.zeros_like(weight) if needed[1] else None
        bias_gradient = torch.zeros_like(bias) if needed[2] else None
        for rows in _chunks(labels, context.chunk):
            logits_gradient = _gradient(_logits(hidden[rows], weight, bias), labels[rows], gradients[0][rows])
            logits_gradient = logits_gradient.to(weight.dtype)
            if hidden_gradient is not None:
                torch.mm(logits_gradient, weight, out=hidden_gradient[rows])
            if weight_gradient is not None:
                weight_gradient.addmm_(logits_gradient.t(), hidden[rows])
            if bias_gradient is not None:
                bias_gradient += logits_gradient.sum(dim=0)
            del logits_gradient
        return hidden_gradient, weight_gradient, bias_gradient, None, None


# Both functions modify the logits in place: log_softmax and logsumexp would each allocate another tensor of their size.


def _losses(logits: Tensor, labels: Tensor) -> Tensor:
    logits -= logits.amax(dim=-1, keepdim=True)
    mask = labels != IGNORED
    label_logits = logits.gather(-1, labels.where(mask, 0)[:, None]).squeeze(-1)
    return (logits.exp_().sum(dim=-1).log_() - label_logits) * mask


def _losses_and_gradients(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return what `_losses` and `_gradient` (with scales of 1) do, from one softmax."""
    logits -= logits.amax(dim=-1, keepdim=True)
    mask = labels != IGNORED
    targets = labels.where(mask, 0)[:, None]
    label_logits = logits.gather(-1, targets).squeeze(-1)
    sums = logits.exp_().sum(dim=-1)
    losses = (sums.log() - label_logits) * mask
    logits /= sums[:, None]
    logits.scatter_add_(-1, targets, -torch.ones_like(targets, dtype=logits.dtype))
    return losses, logits.mul_(mask[:, None])


def _gradient(logits: Tensor, labels: Tensor, scales: Tensor) -> Tensor:
    """Return the gradient of each loss by its logits, times its scale, in place: softmax minus one at the label."""
    logits -= logits.amax(dim=-1, keepdim=True)
    logits /= logits.exp_().sum(dim=-1, keepdim=True)
    mask = labels != IGNORED
    logits.scatter_add_(-1, labels.where(mask, 0)[:, None], -torch.ones_like(labels, dtype=logits.dtype)[:, None])
    return logits.mul_((mask * scales)[:, None])


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return functional.linear(hidden, weight, bias).to(_accumulation_dtype(hidden))


def _accumulation_dtype(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def _chunks(labels: Tensor, chunk: int) -> Iterator[slice]:
    return (slice(start, start + chunk) for start in range(0, labels.shape[0], chunk))
