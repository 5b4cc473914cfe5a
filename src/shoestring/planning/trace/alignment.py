"""The CTC loss, with the memory of CUDA's kernels (`aten/src/ATen/native/cuda/LossCTC.cu`).

torch's fake tensors refuse it, because its CPU kernel reads the lengths of the labels from a tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from shoestring.planning.trace.simulated_device import KEY

_library = torch.library.Library("aten", "IMPL")

_MEAN = 1
"""The number of `reduction="mean"` in `torch/nn/_reduction.py`; 2 is the sum."""


def set_up() -> None:
    """Replace the loss on the simulated device, where lengths are given as numbers."""
    _library.impl("ctc_loss.IntList", _ctc_loss, f"Autograd{KEY}")


def _ctc_loss(
    log_probabilities: Tensor,
    targets: Tensor,
    input_lengths: Sequence[int],  # noqa: ARG001 - the signature of torch
    target_lengths: Sequence[int],
    blank: int = 0,  # noqa: ARG001
    reduction: int = _MEAN,
    zero_infinity: bool = False,  # noqa: ARG001
) -> Tensor:
    apply: Any = _Alignment.apply
    losses: Tensor = apply(log_probabilities, targets, max(target_lengths, default=0))
    return losses.mean() if reduction == _MEAN else losses.sum() if reduction else losses


class _Alignment(torch.autograd.Function):
    """Each kernel writes its result once; backward needs a table like that of forward besides the gradient."""

    @staticmethod
    def forward(ctx: Any, log_probabilities: Tensor, targets: Tensor, longest: int) -> Tensor:
        frames, samples, _ = log_probabilities.shape
        table = log_probabilities.new_empty(samples, frames, 2 * longest + 1).zero_()
        losses = log_probabilities.new_empty(samples).zero_()
        ctx.save_for_backward(log_probabilities, targets, table, losses)
        return losses

    @staticmethod
    def backward(ctx: Any, *_gradients: Tensor) -> tuple[Tensor, None, None]:
        log_probabilities, _, table, _ = ctx.saved_tensors
        backward_table = torch.empty_like(table).zero_()
        gradient = torch.empty_like(log_probabilities).zero_()
        del backward_table
        return gradient, None, None
