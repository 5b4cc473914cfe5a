"""Filtering with a kernel of its own for every pixel and channel, in little memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

KERNELS = {"cpu": 2**20}
"""How many of the kernels' weights are there at once, by kind of device: on a CPU what its caches hold."""
MANY_KERNELS = 2**26


def dynamic_filter(features: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor, leak: float) -> Tensor:
    """Every pixel of `features` (n, c, h, w) as a weighted sum of the square of pixels around it: (n, c, h, w).

    A pixel's k*k weights for each channel, k odd, are a linear function of what `hidden` (n, d, h, w) has there, by
    `weight` (c*k*k, d) and `bias` (c*k*k), channel by channel, by row, then column; of negative ones `leak` is left.
    Beyond the border the nearest pixel counts.

    The kernels are made for some rows at a time, and made again in backward: k*k times as large as the features, they
    are the largest thing there is. Sums are in the features' type, products with `weight` in that of `hidden`.
    """
    channels = features.shape[1]
    side = _side(len(weight) // channels)
    padded = nn.functional.pad(features, (side // 2,) * 4, mode="replicate").permute(0, 2, 3, 1).contiguous()
    # Place by place, so that a pixel's channels lie together, as they do in the features.
    by_place = weight.unflatten(0, (channels, side**2)).transpose(0, 1).flatten(0, 1).to(hidden.dtype)
    places = bias.unflatten(0, (channels, side**2)).t().flatten().to(hidden.dtype)
    apply: Any = _Filter.apply
    filtered: Tensor = apply(padded, hidden.permute(0, 2, 3, 1).contiguous(), by_place, places, leak)
    return filtered.permute(0, 3, 1, 2)


class _Filter(torch.autograd.Function):
    """On pixels with their channels: `padded` (n, h + k - 1, w + k - 1, c), `hidden` (n, h, w, d)."""

    @staticmethod
    def forward(ctx: Any, padded: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor, leak: float) -> Tensor:
        ctx.save_for_backward(padded, hidden, weight, bias)
        ctx.leak = leak
        filtered = padded.new_empty(*hidden.shape[:-1], padded.shape[-1])
        with torch.autocast(padded.device.type, enabled=False):
            for part in _parts(padded, hidden, weight):
                squares = part.squares
                kernels = _kernels(part, weight, bias, leak).view(squares.shape)
                products = torch.mul(squares, kernels, out=squares.new_empty(squares.shape))
                filtered[part.sample, part.rows] = products.sum(dim=(2, 3))
        return filtered

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        padded, hidden, weight, bias = ctx.saved_tensors
        of_padded, of_hidden = torch.zeros_like(padded), torch.empty_like(hidden)
        of_weight, of_bias = torch.zeros_like(weight), torch.zeros_like(bias)
        with torch.autocast(padded.device.type, enabled=False):
            for part in _parts(padded, hidden, weight):
                squares, of_filtered = part.squares, gradient[part.sample, part.rows]
                kernels = _kernels(part, weight, bias, ctx.leak)
                of_kernels = torch.empty_like(kernels)
                torch.mul(squares, of_filtered[:, :, None, None], out=of_kernels.view(squares.shape))
                of_kernels = torch.ops.aten.leaky_relu_backward(of_kernels, kernels, ctx.leak, True)
                of_hidden[part.sample, part.rows] = (of_kernels @ weight).view(part.hidden.shape)
                of_weight.addmm_(of_kernels.t(), part.hidden.flatten(0, 1))
                of_bias += of_kernels.sum(dim=0)
                _spread(of_padded[part.sample], part.rows.start, of_filtered, kernels.view(squares.shape))
        return of_padded, of_hidden, of_weight, of_bias, None


class _Part(NamedTuple):
    """Some rows of one sample."""

    sample: int
    rows: slice
    hidden: Tensor
    """(rows, w, d)."""
    squares: Tensor
    """(rows, w, k, k, c), a view of the padded features, where each pixel is many times."""


def _parts(padded: Tensor, hidden: Tensor, weight: Tensor) -> Iterator[_Part]:
    samples, height, width, _ = hidden.shape
    area = len(weight) // padded.shape[-1]
    many = max(1, KERNELS.get(padded.device.type, MANY_KERNELS) // (len(weight) * width))
    for sample in range(samples):
        squares = padded[sample].unfold(0, _side(area), 1).unfold(1, _side(area), 1).permute(0, 1, 3, 4, 2)
        for start in range(0, height, many):
            rows = slice(start, min(start + many, height))
            yield _Part(sample, rows, hidden[sample, rows], squares[rows])


def _kernels(part: _Part, weight: Tensor, bias: Tensor, leak: float) -> Tensor:
    """(pixels, k*k*c)."""
    return nn.functional.leaky_relu_(torch.addmm(bias, part.hidden.flatten(0, 1), weight.t()), leak)


def _spread(of_padded: Tensor, start: int, of_filtered: Tensor, kernels: Tensor) -> None:
    """Add to `of_padded` (h + k - 1, w + k - 1, c) what the gradient of rows from `start` on, by their kernels, is of
    each pixel around.
    """
    height, width, side = kernels.shape[:3]
    for row in range(side):
        for column in range(side):
            around = of_padded[start + row : start + row + height, column : column + width]
            around.addcmul_(of_filtered, kernels[:, :, row, column])


def _side(area: int) -> int:
    return int(area**0.5)
