"""Rates that GPUs sustain in training, compared with their data sheets; each number has its source."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from shoestring.hardware.catalog import Device
from shoestring.settings import Precision
from shoestring.trace.record import Op, PhaseName

Curve = tuple[tuple[float, float], ...]
"""Points of log10 of an operator's FLOPs and the FLOP/s at that size, both ascending, so that one large operator is
never slower than several small ones."""

Kind = Literal["elementwise", "softmax", "norm"]


@dataclass(frozen=True, kw_only=True)
class Rates:
    """FLOP/s, bytes/s and seconds that a device sustains."""

    products: Curve
    """Matrix products in fp32, by FLOPs rounded up to whole tiles (`kernels.padded_flops`)."""
    convolutions: Curve
    """3x3 convolutions with a stride of one in fp32, by FLOPs of the direct algorithm rounded up to whole tiles
    (`kernels.tiled_flops`); Winograd's algorithm needs fewer."""
    half: Mapping[Precision, float]
    """Large matrix products in the 16-bit types, FLOP/s."""
    half_attention: float
    """The share of the rates in `half` that fused attention in a 16-bit type reaches."""
    bandwidth: Mapping[Kind, float]
    """Bytes/s of memory-bound kernels."""
    kernel_seconds: float
    """The minimum time of a kernel, or from the start of one kernel to the next."""
    call_seconds: tuple[float, float, float]
    """The host's minimum time from one operator with a kernel to the next: low, typical, high."""
    view_seconds: float
    """The host's time for an operator without a kernel."""
    call_shares: Mapping[PhaseName, float] = field(default_factory=dict)
    """Factors on `call_seconds` in the phases where a call takes another time than in forward."""
    kernels: Callable[[Op], float] | None = None
    """The seconds of an operator's kernels where each operator was timed itself; None: `kernels.py` computes them."""
    queued: bool
    """Whether the host continues with the next operator while the device computes."""
    source: str


_T4_PRODUCTS: Curve = ((7.0, 0.88e12), (7.5, 2.33e12), (8.0, 3.71e12))
"""`benchmarks/time/derive.py` on NeuSight's timings, with one rate from 10^8 FLOPs on. In isolation a short kernel runs
at 4.6 TFLOP/s and one of 30 ms at 3.2, since the card lowers its clock at 70 W; in training consecutive kernels run at
one clock."""

_T4_CONVOLUTIONS: Curve = (
    (8.0, 0.49e12), (8.5, 1.34e12), (9.0, 2.44e12), (9.5, 4.61e12), (10.0, 6.64e12), (10.5, 9.30e12), (11.0, 12.50e12),
)  # fmt: skip
"""From the same source, which timed only the forward pass; the input's gradient uses the same curve."""

_T4_HALF = 24e12
"""cuBLAS, 4096 cubed, a hundred times in a row: https://forums.developer.nvidia.com/t/about-gpu-peak-performance/264462,
where NVIDIA explains it by the limit of 70 W."""

_T4_HALF_ATTENTION = 0.66 / 2.19
"""On a T4, forward, a kernel for Turing reaches 66% of the tensor cores' peak and is 2.19 times as fast as PyTorch's
memory-efficient one (https://github.com/Dao-AILab/flash-attention/pull/2379). So PyTorch's reaches 30%, applied here to
the rate of products."""

_FLASH = 0.7
"""FlashAttention-2 reaches 73% of an A100's peak forward and 63% backward (arXiv 2307.08691); applied here to the rate
of sustained products."""

_RENTED_HOST = (10e-6, 25e-6, 50e-6)
"""Eager PyTorch's time from one operator to the next on the hosts of rented GPUs. The typical value is from NeuSight's
smallest operators, which are bound by the host; the low and high values are assumptions."""

_OWN_HOST = (6e-6, 15e-6, 40e-6)
"""The same on a CPU of 2023: 17 us including views, measured with the update of an MLP of 1,700 parameters (torch
2.13). The low and high values are assumptions."""

_T4 = Rates(
    products=_T4_PRODUCTS,
    convolutions=_T4_CONVOLUTIONS,
    half={"fp16": _T4_HALF, "bf16": _T4_PRODUCTS[-1][1]},
    half_attention=_T4_HALF_ATTENTION,
    bandwidth={"elementwise": 240e9, "softmax": 193e9, "norm": 154e9},
    kernel_seconds=4e-6,
    call_seconds=_RENTED_HOST,
    view_seconds=4e-6,
    queued=True,
    source=(
        "kernels timed on a T4: fp32 and memory by NeuSight (sitar-lab/NeuSight), fp16 products on NVIDIA's forum (24 "
        "TFLOP/s), attention by flash-attention#2379; the host's 25 us by NeuSight's smallest operators"
    ),
)

MEASURED_RATES: Mapping[str, Rates] = {"t4": _T4}

_UNTIMED_FP32 = 0.53
_UNTIMED_HALF = 0.32
_UNTIMED_BANDWIDTH = 0.75
"""Assumed shares of a data sheet's rates for a GPU whose kernels were not timed, between those of a T4 (0.46, 0.37 and
0.75) and the 75% that torch's own estimator assumes."""


def find_rates(device: Device) -> Rates | None:
    """Return the rates that the device sustains; None if the catalog lacks the rates of its data sheet."""
    if device.fp32_flops is None or device.bandwidth is None:
        return None
    if device.compute_capability is None:
        return _cpu_rates(device.fp32_flops, device.bandwidth)
    return MEASURED_RATES.get(device.name) or _scale_t4_rates(device, device.fp32_flops, device.bandwidth)


def _scale_t4_rates(device: Device, fp32_flops: float, bandwidth: float) -> Rates:
    """Return a T4's curves for another GPU, scaled in size and rate by the ratio of the GPUs' rates."""
    fp32 = fp32_flops * _UNTIMED_FP32
    sustained_bandwidth = bandwidth * _UNTIMED_BANDWIDTH
    t4_bandwidth = _T4.bandwidth["elementwise"]
    return Rates(
        products=scale_curve(_T4_PRODUCTS, fp32),
        convolutions=scale_curve(_T4_CONVOLUTIONS, fp32 * _T4_CONVOLUTIONS[-1][1] / _T4_PRODUCTS[-1][1]),
        half={
            "fp16": device.fp16_flops * _UNTIMED_HALF if device.fp16_flops else fp32,
            "bf16": device.bf16_flops * _UNTIMED_HALF if device.bf16_flops else fp32,
        },
        half_attention=_FLASH if device.flash_attention else _T4_HALF_ATTENTION,
        bandwidth={kind: sustained_bandwidth * rate / t4_bandwidth for kind, rate in _T4.bandwidth.items()},
        kernel_seconds=_T4.kernel_seconds,
        call_seconds=_RENTED_HOST,
        view_seconds=4e-6,
        queued=True,
        source=(
            "no kernel was timed on this GPU: a T4's curves, scaled to 53% (fp32), 32% (16 bits) and 75% (memory) of "
            "the data sheet"
        ),
    )


def scale_curve(curve: Curve, peak_rate: float) -> Curve:
    """Return the curve scaled to end at `peak_rate`: sizes and rates grow by the same ratio, so times stay the same."""
    curve_peak = curve[-1][1]
    return tuple((size + math.log10(peak_rate / curve_peak), peak_rate * rate / curve_peak) for size, rate in curve)


def _cpu_rates(fp32_flops: float, bandwidth: float) -> Rates:
    flat: Curve = ((0.0, fp32_flops),)
    return Rates(
        products=flat,
        convolutions=flat,
        half={"fp16": fp32_flops, "bf16": fp32_flops},
        half_attention=1.0,
        bandwidth={"elementwise": bandwidth, "softmax": bandwidth, "norm": bandwidth},
        kernel_seconds=0.0,
        call_seconds=_OWN_HOST,
        view_seconds=2e-6,
        queued=False,
        source="large products and copies measured on this machine; smaller ones reach less",
    )
