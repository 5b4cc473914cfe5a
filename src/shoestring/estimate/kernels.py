"""Seconds of one operator on a GPU: the maximum of its compute and memory time at sustained rates (a roofline)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from shoestring.estimate.rates import Curve, Kind, Rates
from shoestring.settings import Precision
from shoestring.trace.record import Op

TILE = (64, 32)
"""Rows and columns of the result that a thread block computes; products are rounded up to whole tiles. This is the pair
with which a curve by size fits NeuSight's 24,000 products best (a median error of 10% for `linear`, 17% for `bmm`);
cuBLAS also has larger tiles."""

OVERHEAD_DEPTH = 40
"""The cost of starting and ending a thread block, in steps along the depth; fitted together with `TILE`."""

WINOGRAD = (3, 3)
"""The kernel size for which cuDNN uses Winograd's algorithm if the stride is one."""
WINOGRAD_TILE = (4, 4)
WINOGRAD_CHANNELS = 64
"""Height and width of the result of one transform, and the channels that a thread block computes. Rounded up to both,
NeuSight's 5,000 convolutions fit one curve best (a median error of 17%)."""

_ATTENTION = "aten::_scaled_dot_product"
_CONVOLUTION = "aten::convolution"
_BACKWARD_CONVOLUTION = "aten::convolution_backward"

_SLOWER: Mapping[str, Kind] = {
    "softmax": "softmax",
    **dict.fromkeys(("layer_norm", "batch_norm", "rms_norm", "group_norm"), "norm"),
}
"""Kernels with a lower memory bandwidth than elementwise ones, by a part of their name."""


def kernel_seconds(op: Op, rates: Rates) -> float:
    """Return the device's seconds for the operator's kernels, which are at least the time of their launches."""
    if rates.kernels:
        return rates.kernels(op)
    kind: Kind = next((kind for part, kind in _SLOWER.items() if part in op.name), "elementwise")
    memory_seconds = op.bytes / rates.bandwidth[kind]
    return max(memory_seconds, _compute_seconds(op, rates), op.launches * rates.kernel_seconds)


def padded_flops(shape: Sequence[int]) -> float:
    """Return the FLOPs of a product rounded up to whole tiles; `shape` is batch size, rows, columns and depth."""
    batch, rows, columns, depth = shape[:4]
    tile_rows, tile_columns = TILE
    return 2.0 * batch * _round_up(rows, tile_rows) * _round_up(columns, tile_columns) * (depth + OVERHEAD_DEPTH)


def tiled_flops(shape: Sequence[int]) -> float:
    """Return the FLOPs of a 3x3 convolution rounded up to whole tiles, without Winograd's savings.

    `shape` is one of `trace/products.py`.
    """
    groups, rows, columns, depth, _, _, height, width = shape
    positions = _round_up(height, WINOGRAD_TILE[0]) * _round_up(width, WINOGRAD_TILE[1])
    return 2.0 * groups * rows / (height * width) * positions * _round_up(columns, WINOGRAD_CHANNELS) * depth


def _compute_seconds(op: Op, rates: Rates) -> float:
    if not op.flops:
        return 0.0
    is_half = op.precision != "fp32"
    if not op.shape:
        return op.flops / (rates.half[op.precision] if is_half else interpolate_rate(rates.products, op.flops))
    if op.name.startswith(_ATTENTION):
        if is_half:
            return op.flops / (rates.half[op.precision] * rates.half_attention)
        # The depth of half of its products is the width of a head, and of the others the length of the sequence.
        return _product_seconds(op.flops * (1 + _padding_factor(op.shape)) / 2, op.precision, rates)
    if op.name.startswith(_CONVOLUTION):
        return sum(_convolution_seconds(op, op.flops / op.launches, part, rates) for part in range(op.launches))
    return _product_seconds(op.flops * _padding_factor(op.shape), op.precision, rates)


def _product_seconds(work: float, precision: Precision, rates: Rates) -> float:
    """Return the seconds of a product of so many FLOPs, rounded up to whole tiles."""
    if precision == "fp32":
        return work / interpolate_rate(rates.products, work)
    half, peak = rates.half[precision], rates.products[-1][1]
    # The utilization is that of an fp32 product of the same duration.
    return work / (half * interpolate_rate(rates.products, work * peak / half) / peak)


def _convolution_seconds(op: Op, flops: float, part: int, rates: Rates) -> float:
    """Return the seconds of the result, or of gradient number `part`: the weight's first, then the input's.

    The weight's gradient is a product along all positions of all images, for which cuDNN has no faster algorithm.
    """
    groups, rows, columns, depth = op.shape[:4]
    if groups > 1 and columns == 1:
        return 0.0  # a depthwise convolution: torch's own kernels, which are memory-bound
    is_weight_gradient = op.name == _BACKWARD_CONVOLUTION and part == 0
    if tuple(op.shape[4:6]) == WINOGRAD and op.precision == "fp32" and not is_weight_gradient:
        work = flops * tiled_flops(op.shape) / (2.0 * math.prod(op.shape[:4]))
        return work / interpolate_rate(rates.convolutions, work)
    shape = (groups, columns, depth, rows) if is_weight_gradient else op.shape
    return _product_seconds(flops * _padding_factor(shape), op.precision, rates)


def _padding_factor(shape: Sequence[int]) -> float:
    """Return the ratio of padded FLOPs to FLOPs.

    It is computed from the shape alone, as scaling a trace to another microbatch scales the FLOPs but not the shapes.
    """
    return padded_flops(shape) / (2.0 * math.prod(shape[:4]))


def interpolate_rate(curve: Curve, work: float) -> float:
    """Return the rate for so many FLOPs.

    Between the points of the curve it is a power of the FLOPs, so that more work never takes less time; beyond the last
    point it is constant; below the first it is proportional to the FLOPs, so that the time is that of the first point.
    """
    size = math.log10(work)
    first, last = curve[0], curve[-1]
    if size <= first[0]:
        return first[1] * math.exp((size - first[0]) * math.log(10))
    for (low_size, low_rate), (high_size, high_rate) in pairwise(curve):
        if size <= high_size:
            return float(low_rate * (high_rate / low_rate) ** ((size - low_size) / (high_size - low_size)))
    return last[1]


def _round_up(number: int, tile: int) -> int:
    return -(-number // tile) * tile
