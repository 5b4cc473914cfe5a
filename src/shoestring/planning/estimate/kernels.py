"""Seconds of one operator on a GPU: the maximum of its compute and memory time at sustained rates (a roofline)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from shoestring.base.settings import Precision
from shoestring.planning.estimate.convolutions import ALIGNMENT, tensor_core_seconds
from shoestring.planning.estimate.rates import Curve, HostKind, Kind, Rates
from shoestring.planning.trace.convolution import ConvolutionShape
from shoestring.planning.trace.record import Op

TILE = (64, 64)
"""Rows and columns of the result that a thread block computes; products are rounded up to whole tiles. This is the pair
with which NeuSight's 24,000 products are fitted best (a median error of 13% for `linear` and 17% for `bmm` from 10^8
FLOPs on); whole waves of blocks on the 40 multiprocessors fit no better. cuBLAS also has larger tiles."""

OVERHEAD_DEPTH = 10
"""The cost of starting and ending a thread block, in steps along the depth; fitted together with `TILE`."""

WINOGRAD = (3, 3)
"""The kernel size for which cuDNN uses Winograd's algorithm if the stride is one."""
WINOGRAD_TILE = (4, 4)
WINOGRAD_CHANNELS = 64
"""Height and width of the result of one transform, and the channels that a thread block computes. Rounded up to both,
NeuSight's 5,000 convolutions fit one curve best (a median error of 17%)."""

FUSED_TILE = (2, 2)
FUSED_PRODUCTS = 16
"""The fastest of cuDNN's algorithms for most 3 x 3 convolutions turns each tile of 2 x 2 positions into 4 x 4 products
of all channels, 2.25 times fewer than the formula has. At the rate of ordinary products of that size, DeepBench's
convolutions in fp32 are predicted with a median error of 18% on a T4, 13% on a P100 and 21% on a V100 in the forward
pass, 12 to 23% for the input's and 30 to 36% for the weight's gradient; the median ratios are between 0.87 and 1.06.
DeepBench asks cuDNN for its fastest algorithm. NeuSight's convolutions, those of torch without `cudnn.benchmark`, take
1.1 times as long as this on a T4, 1.45 times on a P100 and 1.75 times on a V100."""

WEIGHT_PRODUCT = 1.5
"""How much longer the weight's gradient of a 1 x 1 convolution takes in fp32 than the same product in the forward pass:
1.65 times on a T4, 1.52 on a V100 and 1.34 on a P100, the medians of DeepBench's 20, 12 and 21 timings above 0.1 ms.
That of 3 x 3 kernels takes as long as the forward pass (0.98, 0.95 and 1.00 of 27, 22 and 29)."""

FEW_CHANNELS = 0.6
"""The share of a product's rate that the weight's gradient reaches with fewer than 8 channels of input, as in a first
layer: DeepBench's fp32 timings on a T4 (`benchmarks/time/convolutions.py`)."""

BATCH_NORM_BACKWARD = 0.89
"""The bandwidth of BatchNorm's backward pass as a share of other norms', whose operands count once. It reads its two
operands twice: once for sums by channel, once for the gradient. In profiles of an AlexNet in fp32 on a T4
(mholmeslinder/semi-supervised-cv at 3baf8a26, `logs/scalars*/**/kernel_stats.pb`) it takes 1.63 to 1.87 times (median
1.75) as long as the gradient of the ReLU of the same tensor, at 240 GB/s. The forward pass has 135 to 157 GB/s."""

RECURRENT_STEP_SECONDS = 33e-6
"""The time from one step of a recurrent layer to the next beyond that of its product with the state: the median of
DeepBench's timings of 53 recurrent layers on a V100, forward and for the input's gradient (LSTM 35 and 28 us, GRU 21
and 25, plain layers 53 and 35; `results/train/DeepBench_NV_V100.xlsx`, cuDNN 7.6.2). On a P100 it was longer, with the
older cuDNN 6."""

_ATTENTION = "aten::_scaled_dot_product"
_RECURRENT_SHARES = {"shoestring::recurrent": 1 / 2, "shoestring::recurrent_backward": 1 / 4}
"""The share of a recurrent layer's FLOPs in the products that wait for the step before: forward multiplies the input
and the state by weights, backward computes the gradients of all four operands."""
_CONVOLUTION = "aten::convolution"
_BACKWARD_CONVOLUTION = "aten::convolution_backward"

_SLOWER: Mapping[str, Kind] = {
    "softmax": "softmax",
    **dict.fromkeys(("layer_norm", "batch_norm", "rms_norm", "group_norm"), "norm"),
}
"""Kernels with a lower memory bandwidth than elementwise ones, by a part of their name."""

_HOST_KINDS: Mapping[str, HostKind] = {
    "convolution": "convolution",
    **dict.fromkeys(("layer_norm", "batch_norm", "rms_norm", "group_norm"), "norm"),
}
"""Operators with more work on the host than elementwise ones, by a part of their name; products are the others with a
shape."""


def kernel_seconds(op: Op, rates: Rates) -> float:
    """Return the device's seconds for the operator's kernels, which are at least the time of their launches."""
    if rates.kernels:
        return rates.kernels(op)
    kind: Kind = next((kind for part, kind in _SLOWER.items() if part in op.name), "elementwise")
    bandwidth = rates.bandwidth[kind] * (BATCH_NORM_BACKWARD if "batch_norm_backward" in op.name else 1.0)
    memory_seconds = op.bytes / bandwidth
    return max(memory_seconds, _compute_seconds(op, rates), op.launches * rates.kernel_seconds)


def call_factor(op: Op, rates: Rates) -> float:
    """Return the multiple of the host's time for an operator with a kernel that this one takes."""
    kind: HostKind | None = next((kind for part, kind in _HOST_KINDS.items() if part in op.name), None)
    if kind is None and op.shape:
        kind = "product"
    return rates.call_factors.get(kind, 1.0) if kind else 1.0


def padded_flops(shape: Sequence[int]) -> float:
    """Return the FLOPs of a product rounded up to whole tiles; `shape` is batch size, rows, columns and depth."""
    batch, rows, columns, depth = shape[:4]
    tile_rows, tile_columns = TILE
    return 2.0 * batch * _round_up(rows, tile_rows) * _round_up(columns, tile_columns) * (depth + OVERHEAD_DEPTH)


def tiled_flops(shape: Sequence[int]) -> float:
    """Return the FLOPs of a 3x3 convolution rounded up to whole tiles, without Winograd's savings.

    `shape` is a `ConvolutionShape`.
    """
    convolution = ConvolutionShape(*shape)
    positions = _round_up(convolution.height, WINOGRAD_TILE[0]) * _round_up(convolution.width, WINOGRAD_TILE[1])
    images = convolution.rows / (convolution.height * convolution.width)
    columns = _round_up(convolution.columns, WINOGRAD_CHANNELS)
    return 2.0 * convolution.groups * images * positions * columns * convolution.depth


def fused_flops(shape: Sequence[int]) -> float:
    """Return the FLOPs of the products in Winograd's fused algorithm for a 3x3 convolution, in whole tiles.

    `shape` is a `ConvolutionShape`.
    """
    convolution = ConvolutionShape(*shape)
    height, width = FUSED_TILE
    images = convolution.rows // (convolution.height * convolution.width)
    tiles = images * -(-convolution.height // height) * -(-convolution.width // width)
    return padded_flops((convolution.groups * FUSED_PRODUCTS, tiles, convolution.columns, convolution.channels))


def _peak(precision: Precision, rates: Rates) -> float:
    """Return the rate of large matrix products in a precision."""
    if precision != "fp32":
        return rates.half[precision]
    return rates.tf32 if rates.tf32_products and rates.tf32 else rates.products[-1][1]


def _recurrent_seconds(op: Op, rates: Rates) -> float:
    """Return the seconds of a recurrent layer: one product for all steps, then one for each, in turn."""
    steps = max(1, op.launches // 2)
    waiting = op.flops * _RECURRENT_SHARES[op.name]
    peak = _peak(op.precision, rates)
    all_steps, step = (_product_seconds(work, peak, rates) for work in (op.flops - waiting, waiting / steps))
    return all_steps + steps * (step + RECURRENT_STEP_SECONDS)


def _compute_seconds(op: Op, rates: Rates) -> float:
    if not op.flops:
        return 0.0
    if op.name in _RECURRENT_SHARES:
        return _recurrent_seconds(op, rates)
    is_half = op.precision != "fp32"
    if not op.shape:
        return op.flops / (rates.half[op.precision] if is_half else interpolate_rate(rates.products, op.flops))
    if op.name.startswith(_ATTENTION):
        if is_half:
            return op.flops / (rates.half[op.precision] * rates.half_attention)
        # The depth of half of its products is the width of a head, and of the others the length of the sequence.
        return _product_seconds(op.flops * (1 + _padding_factor(op.shape)) / 2, rates.products[-1][1], rates)
    if op.name.startswith(_CONVOLUTION):
        return sum(_convolution_parts(op, rates))
    return _product_seconds(op.flops * _padding_factor(op.shape), _peak(op.precision, rates), rates)


def _product_seconds(work: float, peak: float, rates: Rates) -> float:
    """Return the seconds of a product of so many FLOPs, rounded up to whole tiles; large ones reach `peak`."""
    fp32_peak = rates.products[-1][1]
    # The utilization is that of an fp32 product of the same duration.
    return work / (peak * interpolate_rate(rates.products, work * fp32_peak / peak) / fp32_peak)


def _convolution_parts(op: Op, rates: Rates) -> Sequence[float]:
    """Return the seconds of a convolution, or of each of its gradients: the weight's first, then the input's.

    For a 16-bit type, and for fp32 where the device has TF32, which PyTorch allows for convolutions by default, cuDNN
    chooses between tensor cores and kernels that compute in fp32.
    """
    cores, precision = rates.tensor_cores, op.precision
    has_images = len(op.shape) == len(ConvolutionShape._fields)
    rate = rates.tf32 if precision == "fp32" else rates.half[precision]
    if cores and has_images and rate and rate > rates.products[-1][1]:
        plain = _parts(replace(op, precision="fp32"), rates)
        return [min(pair) for pair in zip(plain, tensor_core_seconds(op, cores, rate, rates), strict=True)]
    return _parts(op, rates)


def _parts(op: Op, rates: Rates) -> list[float]:
    """Return the seconds of a convolution, or of each of its gradients, as products."""
    return [_convolution_seconds(op, op.flops / op.launches, part, rates) for part in range(op.launches)]


def _convolution_seconds(op: Op, flops: float, part: int, rates: Rates) -> float:
    """Return the seconds of the result, or of gradient number `part`: the weight's first, then the input's.

    The weight's gradient is a product along all positions of all images. For kernels of 3 x 3 cuDNN has algorithms for
    it that are as fast as those of the forward pass, except in first layers.
    """
    groups, rows, columns, depth = op.shape[:4]
    if groups > 1 and columns == 1:
        return 0.0  # a depthwise convolution: torch's own kernels, which are memory-bound
    is_weight_gradient = op.name == _BACKWARD_CONVOLUTION and part == 0
    kernel = tuple(op.shape[4:6])
    has_few_channels = bool(kernel) and depth < ALIGNMENT * math.prod(kernel)
    is_wide = not (is_weight_gradient and has_few_channels)
    if kernel == WINOGRAD and tuple(op.shape[8:10]) == (1, 1) and op.precision == "fp32" and is_wide:
        return _winograd_seconds(op.shape, flops, rates)
    peak = rates.products[-1][1] if op.precision == "fp32" else rates.half[op.precision]
    if not is_weight_gradient:
        return _product_seconds(flops * _padding_factor(op.shape), peak, rates)
    seconds = _product_seconds(flops * _padding_factor((groups, depth, columns, rows)), peak, rates)
    if has_few_channels:
        return seconds / FEW_CHANNELS
    return seconds * WEIGHT_PRODUCT if kernel == (1, 1) else seconds


def _winograd_seconds(shape: Sequence[int], flops: float, rates: Rates) -> float:
    """Return the seconds of a 3x3 convolution in fp32 by the algorithm that torch chooses, or by the fastest one."""
    # The FLOPs are scaled to another microbatch, the shape is not.
    scale = flops / (2.0 * math.prod(shape[:4]))
    fastest = _product_seconds(scale * fused_flops(shape), rates.products[-1][1], rates)
    if rates.autotuned:
        return fastest
    work = scale * tiled_flops(shape)
    # The curve is by FLOPs alone, and the timed convolutions with many FLOPs have many channels.
    return max(fastest, work / interpolate_rate(rates.convolutions, work))


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
