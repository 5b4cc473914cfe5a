"""Filtering with a separate kernel for every pixel and channel, in little memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

KERNEL_BUDGET = {"cpu": 2**20}
"""Largest number of kernel weights to materialize at once, by device type: on a CPU as many as fit its caches."""
DEFAULT_KERNEL_BUDGET = 2**26


def dynamic_filter(features: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor, leak: float) -> Tensor:
    """Return for every pixel of `features` (n, c, h, w) a weighted sum of the square around it, (n, c, h, w).

    The k*k weights of a pixel for each channel, k odd, are a linear function of `hidden` (n, d, h, w) at that pixel,
    with `weight` (c*k*k, d) and `bias` (c*k*k), ordered by channel, then row, then column; negative weights are
    multiplied by `leak`. Beyond the border the nearest pixel is repeated.

    The kernels are k*k times as large as the features, the largest tensor of the model, so they are computed for a few
    rows at a time and recomputed in backward. Sums have the dtype of the features, products with `weight` that of
    `hidden`.
    """
    channels = features.shape[1]
    side = _kernel_side(len(weight) // channels)
    padded = nn.functional.pad(features, (side // 2,) * 4, mode="replicate").permute(0, 2, 3, 1).contiguous()
    # Ordered by position in the kernel, so that the channels of a pixel are adjacent, as they are in the features.
    weight_by_position = weight.unflatten(0, (channels, side**2)).transpose(0, 1).flatten(0, 1).to(hidden.dtype)
    bias_by_position = bias.unflatten(0, (channels, side**2)).t().flatten().to(hidden.dtype)
    apply: Any = _Filter.apply
    filtered: Tensor = apply(
        padded, hidden.permute(0, 2, 3, 1).contiguous(), weight_by_position, bias_by_position, leak
    )
    return filtered.permute(0, 3, 1, 2)


def unrolled_filter(features: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor, leak: float) -> Tensor:
    """Return what `dynamic_filter` returns, beyond rounding, by operators that a graph for any number of samples can
    have: one row of the kernel at a time, so the kernels of a row are in memory, k times as large as the features.
    """
    channels, height, width = features.shape[1:]
    side = _kernel_side(len(weight) // channels)
    padded = nn.functional.pad(features, (side // 2,) * 4, mode="replicate")
    weight_by_row = weight.unflatten(0, (channels, side, side)).permute(1, 2, 0, 3)
    bias_by_row = bias.unflatten(0, (channels, side, side)).permute(1, 2, 0)
    filtered = torch.zeros_like(features)
    for row in range(side):
        kernels = nn.functional.conv2d(
            hidden, weight_by_row[row].flatten(0, 1)[..., None, None], bias_by_row[row].flatten()
        )
        kernels = nn.functional.leaky_relu(kernels, leak).unflatten(1, (side, channels))
        rows = padded[:, :, row : row + height]
        squares = torch.stack([rows[..., column : column + width] for column in range(side)], dim=1)
        filtered = filtered + (squares * kernels).sum(dim=1)
    return filtered


class _Filter(torch.autograd.Function):
    """The filter in channels-last layout: `padded` (n, h + k - 1, w + k - 1, c), `hidden` (n, h, w, d)."""

    @staticmethod
    def forward(ctx: Any, padded: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor, leak: float) -> Tensor:
        ctx.save_for_backward(padded, hidden, weight, bias)
        ctx.leak = leak
        filtered = padded.new_empty(*hidden.shape[:-1], padded.shape[-1])
        with torch.autocast(padded.device.type, enabled=False):
            for block in _split_rows(padded, hidden, weight):
                squares = block.squares
                kernels = _compute_kernels(block, weight, bias, leak).view(squares.shape)
                products = torch.mul(squares, kernels, out=squares.new_empty(squares.shape))
                filtered[block.sample, block.rows] = products.sum(dim=(2, 3))
        return filtered

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        padded, hidden, weight, bias = ctx.saved_tensors
        grad_padded, grad_hidden = torch.zeros_like(padded), torch.empty_like(hidden)
        grad_weight, grad_bias = torch.zeros_like(weight), torch.zeros_like(bias)
        with torch.autocast(padded.device.type, enabled=False):
            for block in _split_rows(padded, hidden, weight):
                squares, grad_filtered = block.squares, gradient[block.sample, block.rows]
                kernels = _compute_kernels(block, weight, bias, ctx.leak)
                grad_kernels = torch.empty_like(kernels)
                torch.mul(squares, grad_filtered[:, :, None, None], out=grad_kernels.view(squares.shape))
                grad_kernels = torch.ops.aten.leaky_relu_backward(grad_kernels, kernels, ctx.leak, True)
                grad_hidden[block.sample, block.rows] = (grad_kernels @ weight).view(block.hidden.shape)
                grad_weight.addmm_(grad_kernels.t(), block.hidden.flatten(0, 1))
                grad_bias += grad_kernels.sum(dim=0)
                _accumulate_padded_gradient(
                    grad_padded[block.sample], block.rows.start, grad_filtered, kernels.view(squares.shape)
                )
        return grad_padded, grad_hidden, grad_weight, grad_bias, None


class _RowBlock(NamedTuple):
    """Consecutive rows of one sample."""

    sample: int
    rows: slice
    hidden: Tensor
    """(rows, w, d)."""
    squares: Tensor
    """(rows, w, k, k, c), a view of the padded features in which each pixel occurs several times."""


def _split_rows(padded: Tensor, hidden: Tensor, weight: Tensor) -> Iterator[_RowBlock]:
    samples, height, width, _ = hidden.shape
    area = len(weight) // padded.shape[-1]
    rows_per_block = max(1, KERNEL_BUDGET.get(padded.device.type, DEFAULT_KERNEL_BUDGET) // (len(weight) * width))
    for sample in range(samples):
        side = _kernel_side(area)
        squares = padded[sample].unfold(0, side, 1).unfold(1, side, 1).permute(0, 1, 3, 4, 2)
        for start in range(0, height, rows_per_block):
            rows = slice(start, min(start + rows_per_block, height))
            yield _RowBlock(sample, rows, hidden[sample, rows], squares[rows])


def _compute_kernels(block: _RowBlock, weight: Tensor, bias: Tensor, leak: float) -> Tensor:
    """Return the kernels of a block, (pixels, k*k*c)."""
    return nn.functional.leaky_relu_(torch.addmm(bias, block.hidden.flatten(0, 1), weight.t()), leak)


def _accumulate_padded_gradient(grad_padded: Tensor, start: int, grad_filtered: Tensor, kernels: Tensor) -> None:
    """Add to `grad_padded` (h + k - 1, w + k - 1, c) the contribution of the output rows from `start` on.

    Each output pixel contributes to every pixel of the square around it by its kernel.
    """
    height, width, side = kernels.shape[:3]
    for row in range(side):
        for column in range(side):
            target = grad_padded[start + row : start + row + height, column : column + width]
            target.addcmul_(grad_filtered, kernels[:, :, row, column])


def _kernel_side(area: int) -> int:
    return int(area**0.5)
