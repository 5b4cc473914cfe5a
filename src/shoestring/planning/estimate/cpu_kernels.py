"""Seconds of one operator on a CPU, from timings of operators that were measured on it.

Products and convolutions take the rate of the measured shapes that are nearest to theirs; everything else takes as long
as the measured operator of its name, or of one like it, with as many bytes. The host's time for a call is left out.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from shoestring.hardware.measured import MeasuredRates
from shoestring.planning.trace.record import Op

_NEIGHBOURS = 8
"""The nearest measured shapes that a rate is interpolated from: the corners of a cell of a grid in three dimensions."""

_FAMILIES: Mapping[str, str] = {
    "aten::mm": "aten::mm",
    "aten::addmm": "aten::mm",
    "aten::bmm": "aten::bmm",
    "aten::baddbmm": "aten::bmm",
    "aten::convolution": "aten::convolution",
    "aten::convolution_backward": "aten::convolution_backward",
}
"""Operators whose rate depends on their shape, and the measured operator that stands for them."""

_STAND_INS: tuple[tuple[str, str], ...] = (
    ("softmax_backward", "_softmax_backward_data"),
    ("softmax", "_softmax"),
    ("norm_backward", "native_layer_norm_backward"),
    ("vector_norm", "linalg_vector_norm"),
    ("foreach_norm", "linalg_vector_norm"),
    ("norm", "native_layer_norm"),
    ("dropout_backward", "mul.Tensor"),
    ("dropout", "native_dropout"),
    ("bernoulli", "native_dropout"),
    ("gelu_backward", "gelu_backward"),
    ("gelu", "gelu"),
    ("sigmoid_backward", "tanh_backward"),
    ("silu_backward", "silu_backward"),
    ("silu", "silu"),
    ("sigmoid", "sigmoid"),
    ("tanh_backward", "tanh_backward"),
    ("tanh", "tanh"),
    ("exp", "exp"),
    ("log", "exp"),
    ("erf", "exp"),
    ("sin", "tanh"),
    ("cos", "tanh"),
    ("rsqrt", "sqrt"),
    ("sqrt", "sqrt"),
    ("div_", "addcdiv_"),
    ("div", "div.Tensor"),
    ("relu_backward", "threshold_backward"),
    ("relu", "relu"),
    ("embedding_dense_backward", "embedding_dense_backward"),
    ("embedding", "embedding"),
    ("index", "embedding"),
    ("gather", "embedding"),
    ("sum", "sum.dim_IntList"),
    ("mean", "mean.dim"),
    ("max_pool2d_with_indices_backward", "max_pool2d_with_indices_backward"),
    ("pool", "max_pool2d_with_indices"),
    ("cat", "cat"),
    ("where", "where.self"),
    ("masked_fill", "where.self"),
    ("zero", "fill_.Scalar"),
    ("ones", "fill_.Scalar"),
    ("fill", "fill_.Scalar"),
)
"""Which measured operator stands for one that was not measured: the first whose part the name contains."""


class _Point(NamedTuple):
    position: tuple[float, ...]
    """Logarithms to base 2 of the shape."""
    rate: float
    """FLOP/s."""
    kernel: tuple[int, ...]
    """Height and width of a convolution's kernel."""
    launches: int


def cpu_kernels(measured: MeasuredRates) -> Callable[[Op], float]:
    """Return the function that estimates the seconds of an operator on the measured CPU."""
    call = measured.host["call"].seconds
    points: dict[str, list[_Point]] = defaultdict(list)
    sizes: dict[str, list[tuple[float, float]]] = defaultdict(list)
    steps: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for timing in measured.operators:
        seconds = max(timing.seconds - call, 0.02 * timing.seconds)
        family = _family(timing.operator)
        if family and timing.flops and timing.shape:
            position = tuple(map(math.log2, timing.shape[:4]))
            points[family].append(_Point(position, timing.flops / seconds, timing.shape[4:6], timing.launches))
        elif timing.operator.startswith("shoestring::recurrent"):
            steps[timing.operator].append((timing.flops / timing.launches, seconds / timing.launches))
        elif not timing.flops:
            sizes[timing.operator].append((float(timing.bytes), seconds))
    curves = {name: _ascending(rows) for name, rows in sizes.items()}
    step_curves = {name: _ascending(rows) for name, rows in steps.items()}
    rates: dict[tuple[object, ...], float] = {}

    def seconds_of(op: Op) -> float:
        if op.name in step_curves:
            return op.launches * _interpolate(step_curves[op.name], op.flops / op.launches)
        memory_seconds = _interpolate(curves[_stand_in(op.name, curves)], op.bytes) if curves else 0.0
        if not op.flops:
            return memory_seconds
        family = _family(op.name) or "aten::mm"
        key = (family, op.shape, op.launches, None if op.shape else op.flops)
        if key not in rates:
            rates[key] = _rate(op, points.get(family) or points["aten::mm"])
        return op.flops / rates[key]

    return seconds_of


def _family(name: str) -> str | None:
    """Return the measured operator that stands for a product, a convolution or attention; None for other operators."""
    base = name.partition(".")[0]
    if base.startswith("aten::_scaled_dot_product"):
        return "attention backward" if base.endswith("_backward") else "attention"
    return _FAMILIES.get(base)


def _rate(op: Op, points: Sequence[_Point]) -> float:
    """Return the FLOP/s of the nearest shapes, weighed by the inverse square of their distance.

    A shape beyond those that were measured counts as the nearest of them. An operator without a shape, such as a
    transposed convolution, has the rate of a product with equal sides.
    """
    side = (op.flops / 2 / op.launches) ** (1 / 3)
    shape = op.shape[:4] or (1, side, side, side)
    similar = [point for point in points if point.launches == op.launches] or points
    similar = [point for point in similar if point.kernel == op.shape[4:6]] or similar
    extents = zip(*(point.position for point in similar), strict=True)
    position = [
        min(max(math.log2(max(1.0, size)), min(measured)), max(measured))
        for size, measured in zip(shape, extents, strict=True)
    ]
    distances = sorted((math.dist(position, point.position), point.rate) for point in similar)[:_NEIGHBOURS]
    if distances[0][0] < 1e-6:
        return distances[0][1]
    weights = [1 / distance**2 for distance, _ in distances]
    logarithm = sum(weight * math.log(rate) for weight, (_, rate) in zip(weights, distances, strict=True))
    return math.exp(logarithm / sum(weights))


def _stand_in(name: str, curves: Mapping[str, object]) -> str:
    """Return the measured operator that is most like the one called `name`."""
    if name in curves:
        return name
    for part, stand_in in _STAND_INS:
        if part in name and f"aten::{stand_in}" in curves:
            return f"aten::{stand_in}"
    is_in_place = name.partition(".")[0].endswith("_")
    default = "aten::add_.Tensor" if is_in_place else "aten::add.Tensor"
    return default if default in curves else next(iter(curves))


def _ascending(rows: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the rows by size, the mean of those of one size, and none faster than a smaller one."""
    by_size: dict[float, list[float]] = defaultdict(list)
    for size, seconds in rows:
        by_size[size].append(seconds)
    curve: list[tuple[float, float]] = []
    for size in sorted(by_size):
        seconds = sum(by_size[size]) / len(by_size[size])
        curve.append((size, max(seconds, curve[-1][1]) if curve else seconds))
    return curve


def _interpolate(curve: Sequence[tuple[float, float]], size: float) -> float:
    """Return the seconds for a size: between two points a power of it, beyond the last and below the first in
    proportion."""
    index = bisect_left(curve, (size, 0.0))
    if index == 0 or index == len(curve):
        nearest_size, seconds = curve[min(index, len(curve) - 1)]
        return seconds * size / nearest_size
    (low_size, low), (high_size, high) = curve[index - 1], curve[index]
    return low * math.exp(math.log(high / low) * math.log(size / low_size) / math.log(high_size / low_size))
