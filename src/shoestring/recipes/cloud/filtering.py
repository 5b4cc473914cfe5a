"""Filtering with a kernel of its own for every pixel and channel, in little memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


def dynamic_filter(features: Tensor, kernels: Tensor) -> Tensor:
    """Every pixel of `features` (n, c, h, w) as a weighted sum of the square of pixels around it: (n, c, h, w).

    `kernels` (n, c, k*k, h, w), k odd, has the weights by row, then column. Beyond the border the nearest pixel counts.
    """
    reach = _side(kernels) // 2
    padded = nn.functional.pad(features, (reach,) * 4, mode="replicate")
    apply: Any = _Filter.apply
    filtered: Tensor = apply(padded, kernels)
    return filtered


class _Filter(torch.autograd.Function):
    """Shifted multiply-adds that keep their two inputs.

    Written with plain operators it keeps no more, but each of the k*k places makes a gradient as large as the kernels:
    on a CPU, for 96 channels of 64 x 64 and k = 5, backward takes eight times as long. `unfold` holds k*k copies of the
    features, there 37.5 MiB beside the kernels' own 37.5.
    """

    @staticmethod
    def forward(ctx: Any, padded: Tensor, kernels: Tensor) -> Tensor:
        ctx.save_for_backward(padded, kernels)
        # Kernels may come in half precision; the sum is kept in the features' type, as a convolution would.
        filtered = padded.new_zeros(kernels[:, :, 0].shape)
        for place, shifted in enumerate(_shifts(padded, kernels)):
            filtered.addcmul_(shifted, kernels[:, :, place])
        return filtered

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        padded, kernels = ctx.saved_tensors
        of_padded, of_kernels = torch.zeros_like(padded), torch.empty_like(kernels)
        shifts = zip(_shifts(of_padded, kernels), _shifts(padded, kernels), strict=True)
        for place, (of_shifted, shifted) in enumerate(shifts):
            of_shifted.addcmul_(gradient, kernels[:, :, place])
            of_kernels[:, :, place] = gradient * shifted
        return of_padded, of_kernels


def _shifts(padded: Tensor, kernels: Tensor) -> Iterator[Tensor]:
    """Views (n, c, h, w) of the padded features, one for each place in the kernel."""
    side = _side(kernels)
    height, width = kernels.shape[-2:]
    for row in range(side):
        for column in range(side):
            yield padded[:, :, row : row + height, column : column + width]


def _side(kernels: Tensor) -> int:
    return int(kernels.shape[2] ** 0.5)
