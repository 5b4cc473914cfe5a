"""The rates of a device that was measured (`shoestring check --measure`), in place of a catalogue's."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from statistics import median
from typing import Any

from shoestring.base.settings import Precision
from shoestring.hardware.catalog import Device
from shoestring.hardware.measured import MeasuredRates, OperatorTiming
from shoestring.planning.estimate.cpu_kernels import cpu_kernels
from shoestring.planning.estimate.kernels import WINOGRAD, padded_flops, tiled_flops
from shoestring.planning.estimate.rates import MEASURED_RATES, Curve, Kind, Rates, TensorCoreConvolutions, find_rates

_LARGE_BYTES = 2**24
"""From here on operators that are bound by memory have their full bandwidth, since no cache holds their operands."""
_LARGE_FLOPS = 1e10
_POINTS_PER_DECADE = 2
_HALF: tuple[Precision, ...] = ("fp16", "bf16")

_MEMORY_BOUND: dict[Kind, tuple[str, ...]] = {
    "elementwise": ("aten::add.Tensor", "aten::mul.Tensor", "aten::relu", "aten::add_.Tensor"),
    "softmax": ("aten::_softmax", "aten::_softmax_backward_data"),
    "norm": ("aten::native_layer_norm", "aten::native_layer_norm_backward", "aten::native_batch_norm",
             "aten::native_batch_norm_backward"),
}  # fmt: skip


def rates_of(device: Device) -> Rates | None:
    """Return the measured rates of the device if it has some, else those of the catalogue; None if it has none."""
    return find_rates(device) if device.measured is None else _measured_rates(device.measured)


@lru_cache(maxsize=8)
def _measured_rates(measured: MeasuredRates) -> Rates:
    """Return the rates of a file; a plan asks for them hundreds of times."""
    return _cpu_rates(measured) if measured.device.kind == "cpu" else _gpu_rates(measured)


def _cpu_rates(measured: MeasuredRates) -> Rates:
    """Return the rates of a CPU, whose operators are all estimated from those that were measured."""
    rows = measured.operators
    products = _curve(_products(rows, "fp32"))
    return Rates(
        products=products,
        convolutions=products,
        half={"fp16": products[-1][1], "bf16": products[-1][1]},
        half_attention=1.0,
        bandwidth=_bandwidth(rows),
        kernel_seconds=0.0,
        **_host(measured),
        queued=False,
        kernels=cpu_kernels(measured),
        source=measured.source,
    )


def _gpu_rates(measured: MeasuredRates) -> Rates:
    rows = measured.operators
    products = _curve(_products(rows, "fp32"))
    half = {precision: _large_rate(_products(rows, precision), products[-1][1]) for precision in _HALF}
    attention = [
        row.flops / row.seconds / half[row.precision]
        for row in rows
        if row.operator.startswith("aten::_scaled_dot_product") and row.precision != "fp32" and row.flops
    ]
    convolutions = [
        (tiled_flops(row.shape) * row.launches, row.seconds)
        for row in rows
        if row.operator == "aten::convolution" and row.precision == "fp32" and row.shape[4:6] == WINOGRAD
    ]
    kernel = measured.host.get("kernel", measured.host["call"]).seconds
    return Rates(
        products=products,
        convolutions=_curve(convolutions) if convolutions else products,
        half=half,
        half_attention=min(1.0, max(attention, default=1.0)),
        bandwidth=_bandwidth(rows),
        kernel_seconds=kernel,
        **_host(measured),
        queued=True,
        source=measured.source,
        tensor_cores=_tensor_cores(measured, half),
    )


def _tensor_cores(measured: MeasuredRates, half: Mapping[Precision, float]) -> TensorCoreConvolutions | None:
    """Return a T4's use of tensor cores with the rate of large convolutions that was measured; None without any."""
    t4 = MEASURED_RATES["t4"].tensor_cores
    capability = measured.device.compute_capability
    if t4 is None or capability is None or capability < (7, 0):
        return None
    shares = [
        row.flops / row.seconds / half[row.precision]
        for row in measured.operators
        if row.operator == "aten::convolution" and row.layout == "channels_last" and row.precision in half
        if row.flops >= _LARGE_FLOPS
    ]
    return replace(t4, share=median(shares)) if shares else t4


def _host(measured: MeasuredRates) -> dict[str, Any]:
    """Return the host's seconds as fields of `Rates`: of this host, so only the noise of all timings is a range."""
    host, forward = measured.host, measured.host["forward"].seconds
    return {
        "call_seconds": (forward, forward, forward),
        "call_shares": {name: host[name].seconds / forward for name in ("backward", "optimizer")},
        "view_seconds": host["view"].seconds,
    }


def _products(rows: Iterable[OperatorTiming], precision: Precision) -> list[tuple[float, float]]:
    """Return the FLOPs, rounded up to whole tiles, and the seconds of the matrix products in a precision."""
    names = ("aten::mm", "aten::bmm")
    return [
        (padded_flops(row.shape), row.seconds)
        for row in rows
        if row.operator in names and row.precision == precision and row.shape
    ]


def _curve(timings: Sequence[tuple[float, float]]) -> Curve:
    """Return the median rate by size, at half decades of FLOPs; none is lower than that of a smaller size."""
    by_size: dict[int, list[float]] = defaultdict(list)
    for flops, seconds in timings:
        by_size[round(math.log10(flops) * _POINTS_PER_DECADE)].append(flops / seconds)
    curve: list[tuple[float, float]] = []
    for size in sorted(by_size):
        rate = median(by_size[size])
        curve.append((size / _POINTS_PER_DECADE, max(rate, curve[-1][1]) if curve else rate))
    return tuple(curve)


def _large_rate(timings: Sequence[tuple[float, float]], default: float) -> float:
    """Return the rate of the largest products; `default` if there are none, as in a type that was not measured."""
    large = [flops / seconds for flops, seconds in timings if flops >= _LARGE_FLOPS]
    return median(large) if large else default


def _bandwidth(rows: Iterable[OperatorTiming]) -> dict[Kind, float]:
    """Return the bytes/s of each kind of operator that is bound by memory, for operands that fill no cache."""
    rates = {}
    for kind, names in _MEMORY_BOUND.items():
        timings = [row for row in rows if row.operator in names]
        largest = max(row.bytes for row in timings)
        large = [row for row in timings if row.bytes >= min(_LARGE_BYTES, largest)]
        rates[kind] = median(row.bytes / row.seconds for row in large)
    return rates
