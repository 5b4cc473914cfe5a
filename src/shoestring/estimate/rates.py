"""What GPUs sustain in training, beside what their data sheets say; each number with its source."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from shoestring.hardware.catalog import Device
from shoestring.settings import Precision

Curve = tuple[tuple[float, float], ...]
"""log10 of an operator's FLOPs, and FLOP/s at that size, both ascending: work in one piece is never slower than in
several."""

Kind = Literal["elementwise", "softmax", "norm"]


@dataclass(frozen=True, kw_only=True)
class Rates:
    """FLOP/s, bytes/s and seconds that a device keeps up."""

    products: Curve
    """Matrix products in fp32, of FLOPs rounded up to whole tiles (`kernels.padded_flops`)."""
    convolutions: Curve
    """3x3 convolutions with a stride of one in fp32, of FLOPs as written and rounded up to whole tiles
    (`kernels.tiled_flops`): Winograd's way makes them fewer."""
    half: Mapping[Precision, float]
    """Large matrix products in the 16-bit types, FLOP/s."""
    half_attention: float
    """Of those rates, what fused attention in a 16-bit type reaches."""
    bandwidth: Mapping[Kind, float]
    """Bytes/s of memory-bound kernels."""
    kernel_seconds: float
    """The least that a kernel takes once it is begun, or lies after the one before."""
    call_seconds: tuple[float, float, float]
    """The host's least time from one operator with a kernel to the next: low, typical, high."""
    view_seconds: float
    """The host's time for an operator without a kernel."""
    queued: bool
    """Whether the host goes on to the next operator while the device works."""
    source: str


_T4_PRODUCTS: Curve = ((7.0, 0.88e12), (7.5, 2.33e12), (8.0, 3.71e12))
"""`benchmarks/time/derive.py` on NeuSight's timings, one rate from 10^8 FLOPs on. Alone a short kernel runs at 4.6
TFLOP/s and one of 30 ms at 3.2, since at 70 W the card clocks down; in training they follow one another, at one
clock."""

_T4_CONVOLUTIONS: Curve = (
    (8.0, 0.49e12), (8.5, 1.34e12), (9.0, 2.44e12), (9.5, 4.61e12), (10.0, 6.64e12), (10.5, 9.30e12), (11.0, 12.50e12),
)  # fmt: skip
"""The same; forward alone was timed, and is taken for the input's gradient too."""

_T4_HALF = 24e12
"""cuBLAS, 4096 cubed, a hundred times in a row: https://forums.developer.nvidia.com/t/about-gpu-peak-performance/264462,
where NVIDIA calls it what 70 W allow."""

_T4_HALF_ATTENTION = 0.66 / 2.19
"""A kernel for Turing reaches 66% of the tensor cores and is 2.19 times as fast as PyTorch's memory-efficient one, on
a T4, forward (https://github.com/Dao-AILab/flash-attention/pull/2379): PyTorch's reaches 30%, taken of what products
do."""

_FLASH = 0.7
"""FlashAttention-2 reaches 73% of an A100's peak forward and 63% backward (arXiv 2307.08691); of sustained products."""

_RENTED_HOST = (10e-6, 25e-6, 50e-6)
"""Eager PyTorch's work from one operator to the next on the hosts of rented GPUs. Typical: NeuSight's smallest
operators, which wait for nothing else. The ends are assumptions."""

_OWN_HOST = (6e-6, 15e-6, 40e-6)
"""The same on a CPU of 2023: measured, the update of an MLP of 1,700 parameters (torch 2.13), 17 us with its views. The
ends are assumptions."""

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
        "TFLOP/s), attention by flash-attention#2379; the host's 25 us are NeuSight's smallest operators"
    ),
)

TABLE: Mapping[str, Rates] = {"t4": _T4}

_ANY_FP32 = 0.53
_ANY_HALF = 0.32
_ANY_BANDWIDTH = 0.75
"""Shares of a data sheet's rates on a GPU that nobody timed: between what a T4 reaches (0.46, 0.37 and 0.75) and the
75% that torch's own estimator takes."""


def rates(device: Device) -> Rates | None:
    """What the device sustains; None where the catalogue does not know its rates."""
    if device.fp32_flops is None or device.bandwidth is None:
        return None
    if device.compute_capability is None:
        return _cpu(device.fp32_flops, device.bandwidth)
    return TABLE.get(device.name) or _transferred(device, device.fp32_flops, device.bandwidth)


def _transferred(device: Device, fp32_flops: float, bandwidth: float) -> Rates:
    """A T4's curves for another GPU: the same shapes, as much further along as the GPU is larger."""
    fp32 = fp32_flops * _ANY_FP32
    wide = bandwidth * _ANY_BANDWIDTH
    return Rates(
        products=scaled(_T4_PRODUCTS, fp32),
        convolutions=scaled(_T4_CONVOLUTIONS, fp32 * _T4_CONVOLUTIONS[-1][1] / _T4_PRODUCTS[-1][1]),
        half={
            "fp16": device.fp16_flops * _ANY_HALF if device.fp16_flops else fp32,
            "bf16": device.bf16_flops * _ANY_HALF if device.bf16_flops else fp32,
        },
        half_attention=_FLASH if device.flash_attention else _T4_HALF_ATTENTION,
        bandwidth={kind: wide * share / _T4.bandwidth["elementwise"] for kind, share in _T4.bandwidth.items()},
        kernel_seconds=_T4.kernel_seconds,
        call_seconds=_RENTED_HOST,
        view_seconds=4e-6,
        queued=True,
        source="no kernel timed on this GPU: a T4's curves, at 53% (fp32), 32% (16 bits) and 75% (memory) of its sheet",
    )


def scaled(curve: Curve, last: float) -> Curve:
    """The curve of a device that ends at the rate `last`: a piece of work as long as before, at rates as much higher,
    since the GPU is larger."""
    end = curve[-1][1]
    return tuple((size + math.log10(last / end), last * rate / end) for size, rate in curve)


def _cpu(fp32_flops: float, bandwidth: float) -> Rates:
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
