"""Seconds of convolutions on tensor cores: products in tiles, their memory traffic, and transposes around them.

The form was chosen with DeepBench's 248 16-bit timings on a T4, forward and both gradients, channels last
(`benchmarks/time/convolutions.py`: a median error of 14%). If images are channels first, cuDNN transposes input, weight
and result of each kernel, except of convolutions that are products of the images as they are: 1 x 1 with a stride of
one, and positions that are aligned in each image. Those in TF32 are estimated in the same way, at their own rate and
with 4 bytes for a number.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from shoestring.planning.estimate.rates import Rates, TensorCoreConvolutions
from shoestring.planning.trace.convolution import ConvolutionShape
from shoestring.planning.trace.record import Op

TILE = (256, 64)
"""Positions and channels that a thread block computes, forward and for the input's gradient."""

WEIGHT_DEPTH = 512
"""The cost of starting and ending a thread block of the weight's gradient, in positions."""

ALIGNMENT = 8
"""Tensor cores take 8 numbers of 16 bits at once (NVIDIA, "Convolutional Layers User's Guide")."""

CHANNEL_STEP = 32
"""Channels that a thread block adds up at once at each position of the kernel, forward and for the input's gradient."""


class _Kernel(NamedTuple):
    """One kernel: its FLOPs in whole tiles, the values of the input that it reads or writes, and its starts."""

    flops: float
    values: int
    starts: int = 1


def tensor_core_seconds(op: Op, cores: TensorCoreConvolutions, rate: float, rates: Rates) -> list[float]:
    """Return the device's seconds for a convolution, or for each of its gradients: the weight's first.

    `rate` is that of large products in the same type, FLOP/s.
    """
    width = 4 if op.precision == "fp32" else 2
    shape = ConvolutionShape(*op.shape)
    bandwidth = rates.bandwidth["elementwise"]
    # The FLOPs are scaled to another microbatch, the shape is not.
    scale = op.flops / op.launches / (2.0 * math.prod(shape.product))
    weights = shape.groups * shape.columns * shape.depth
    results = shape.groups * shape.columns * shape.rows
    is_direct = shape.kernel == shape.stride == (1, 1) and shape.height * shape.width % ALIGNMENT == 0
    answer = []
    for kernel in _kernels(op, shape, cores):
        moved = width * (scale * (kernel.values + results) + weights)
        compute_seconds = scale * kernel.flops / (rate * cores.share)
        # Computation and memory traffic overlap in part: the sum of squares fits better than the sum or the maximum.
        seconds = kernel.starts * cores.start_seconds + math.hypot(compute_seconds, moved / bandwidth)
        if not (shape.channels_last or is_direct):
            transposed = width * (scale * (shape.values + results) + weights)
            seconds += 2 * transposed / (bandwidth * cores.transpose_share)
        answer.append(seconds)
    return answer


def _kernels(op: Op, shape: ConvolutionShape, cores: TensorCoreConvolutions) -> list[_Kernel]:
    if op.name != "aten::convolution_backward":
        return [_forward(shape)]
    # A single gradient is taken for the weight's.
    return [_weight_gradient(shape, cores.weight_tile), _input_gradient(shape)][: op.launches]


def _forward(shape: ConvolutionShape) -> _Kernel:
    depth = math.prod(shape.kernel) * _round_up(shape.channels, CHANNEL_STEP)
    flops = _tiled_flops(shape.groups, shape.rows, shape.columns, depth)
    return _Kernel(flops, shape.covered_values)


def _input_gradient(shape: ConvolutionShape) -> _Kernel:
    # A stride leaves out products. DeepBench's kernels of 1 x 1 compute all positions of the input, larger kernels with
    # a stride of 2 save half of what they could.
    steps = math.prod(min(step, size) ** 0.5 for step, size in zip(shape.stride, shape.kernel, strict=True))
    depth = math.prod(shape.kernel) * _round_up(shape.columns, CHANNEL_STEP) / steps
    flops = _tiled_flops(shape.groups, shape.positions, shape.channels, depth)
    return _Kernel(flops, shape.values)


def _weight_gradient(shape: ConvolutionShape, tile: int) -> _Kernel:
    columns, channels = (_round_up(size, tile) for size in (shape.columns, shape.channels))
    size = shape.groups * math.prod(shape.kernel) * channels * columns
    # The positions are divided among thread blocks, whose sums are added by a second kernel.
    return _Kernel(2.0 * size * (shape.rows + WEIGHT_DEPTH), shape.covered_values, starts=2)


def _tiled_flops(groups: int, rows: int, columns: int, depth: float) -> float:
    return 2.0 * groups * _round_up(rows, TILE[0]) * _round_up(columns, TILE[1]) * depth


def _round_up(number: int, tile: int) -> int:
    return -(-number // tile) * tile
