"""Seconds that a GPU spends on one operator: the larger of its arithmetic and its bytes, at sustained rates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from shoestring.estimate.rates import Curve, Kind, Rates
from shoestring.settings import Precision
from shoestring.trace.record import Op

TILE = (64, 32)
"""Rows and columns of the result that a block of threads makes: products are rounded up to it. The pair with which a
curve by size fits NeuSight's 24,000 products best (10% at the median for `linear`, 17% for `bmm`); cuBLAS has larger
ones too."""

OVERHEAD_DEPTH = 40
"""What beginning and ending a block costs, in steps along the depth: fitted together with `TILE`."""

WINOGRAD = (3, 3)
"""Kernels that cuDNN convolves in Winograd's way where their stride is one."""
WINOGRAD_TILE = (4, 4)
WINOGRAD_CHANNELS = 64
"""Height and width of the result that one transform gives, and the channels that a block of threads makes: with both
rounded up to, one curve fits NeuSight's 5,000 convolutions best (17% at the median)."""

_ATTENTION = "aten::_scaled_dot_product"
_CONVOLUTION = "aten::convolution"
_BACKWARD_CONVOLUTION = "aten::convolution_backward"

_SLOWER: Mapping[str, Kind] = {
    "softmax": "softmax",
    **dict.fromkeys(("layer_norm", "batch_norm", "rms_norm", "group_norm"), "norm"),
}
"""Kernels that move bytes more slowly than elementwise ones, by a part of their name."""


def kernel_seconds(op: Op, rates: Rates) -> float:
    """What the device needs for the operator once its kernels are asked for; never less than its launches take."""
    kind: Kind = next((kind for part, kind in _SLOWER.items() if part in op.name), "elementwise")
    moving = op.bytes / rates.bandwidth[kind]
    return max(moving, _arithmetic(op, rates), op.launches * rates.kernel_seconds)


def padded_flops(shape: Sequence[int]) -> float:
    """FLOPs of a product whose result is whole tiles: how many, rows, columns and depth."""
    many, rows, columns, depth = shape[:4]
    tall, wide = TILE
    return 2.0 * many * _up(rows, tall) * _up(columns, wide) * (depth + OVERHEAD_DEPTH)


def tiled_flops(shape: Sequence[int]) -> float:
    """FLOPs, as written, of a 3x3 convolution whose result is whole tiles: a shape of `trace/products.py`."""
    groups, rows, columns, depth, _, _, high, wide = shape
    places = _up(high, WINOGRAD_TILE[0]) * _up(wide, WINOGRAD_TILE[1])
    return 2.0 * groups * rows / (high * wide) * places * _up(columns, WINOGRAD_CHANNELS) * depth


def _arithmetic(op: Op, rates: Rates) -> float:
    if not op.flops:
        return 0.0
    half = op.precision != "fp32"
    if not op.shape:
        return op.flops / (rates.half[op.precision] if half else at(rates.products, op.flops))
    if op.name.startswith(_ATTENTION):
        if half:
            return op.flops / (rates.half[op.precision] * rates.half_attention)
        # Half of its products are as shallow as a head is wide, the others as deep as a sequence is long.
        return _product(op.flops * (1 + _padding(op.shape)) / 2, op.precision, rates)
    if op.name.startswith(_CONVOLUTION):
        return sum(_convolution(op, op.flops / op.launches, part, rates) for part in range(op.launches))
    return _product(op.flops * _padding(op.shape), op.precision, rates)


def _product(work: float, precision: Precision, rates: Rates) -> float:
    """Seconds of a product of so many FLOPs, whole tiles counted."""
    if precision == "fp32":
        return work / at(rates.products, work)
    half, end = rates.half[precision], rates.products[-1][1]
    # As much of the GPU lies idle as in a product of fp32 that takes as long.
    return work / (half * at(rates.products, work * end / half) / end)


def _convolution(op: Op, flops: float, part: int, rates: Rates) -> float:
    """Seconds of the result, or of the gradient that is number `part`: the weight's first, then the input's.

    The weight's is a product along all places of all images, which cuDNN has no way around.
    """
    many, rows, columns, depth = op.shape[:4]
    if many > 1 and columns == 1:
        return 0.0  # channel by channel: torch's own kernels, which wait for memory
    weights = op.name == _BACKWARD_CONVOLUTION and part == 0
    if tuple(op.shape[4:6]) == WINOGRAD and op.precision == "fp32" and not weights:
        work = flops * tiled_flops(op.shape) / (2.0 * math.prod(op.shape[:4]))
        return work / at(rates.convolutions, work)
    shape = (many, columns, depth, rows) if weights else op.shape
    return _product(flops * _padding(shape), op.precision, rates)


def _padding(shape: Sequence[int]) -> float:
    """By how much whole tiles are more. A trace may have been scaled to another microbatch, FLOPs and not shapes."""
    return padded_flops(shape) / (2.0 * math.prod(shape[:4]))


def at(curve: Curve, work: float) -> float:
    """The rate at so much work: between the curve's points a power of it, so that more work never takes less time;
    beyond its end as there, below its beginning in proportion, so that the time is that of the first point."""
    size = math.log10(work)
    first, last = curve[0], curve[-1]
    if size <= first[0]:
        return first[1] * math.exp((size - first[0]) * math.log(10))
    for (before, low), (after, high) in pairwise(curve):
        if size <= after:
            return float(low * (high / low) ** ((size - before) / (after - before)))
    return last[1]


def _up(number: int, tile: int) -> int:
    return -(-number // tile) * tile
