"""Rates that GPUs sustain in training, compared with their data sheets; each number has its source."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from shoestring.base.settings import Precision
from shoestring.hardware.catalog import Device
from shoestring.planning.trace.record import Op, PhaseName

Curve = tuple[tuple[float, float], ...]
"""Points of log10 of an operator's FLOPs and the FLOP/s at that size, both ascending, so that one large operator is
never slower than several small ones."""

Kind = Literal["elementwise", "softmax", "norm"]

HostKind = Literal["product", "convolution", "norm"]


@dataclass(frozen=True, kw_only=True)
class TensorCoreConvolutions:
    """How 16-bit convolutions use tensor cores (`planning/estimate/convolutions.py`)."""

    share: float
    """Their rate, as a multiple of that of products in the same type."""
    weight_tile: int
    """The channels of the input and of the result that a thread block computes for the weight's gradient, at each
    position of the kernel: an input of 3 channels costs as much as one of so many."""
    start_seconds: float
    """The part of a convolution's time that does not depend on its size: computing offsets, filling and emptying the
    device."""
    transpose_share: float
    """The bandwidth of the kernels that transpose channels-first images, as a share of elementwise ones."""


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
    call_factors: Mapping[HostKind, float] = field(default_factory=dict)
    """The multiples of `call_seconds` that kinds of operators take whose host code does more than that of others."""
    python_seconds: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """The host's time for a Python function (`Op.python_calls`): low, typical, high."""
    call_shares: Mapping[PhaseName, float] = field(default_factory=dict)
    """Factors on `call_seconds` in the phases where a call takes another time than in forward."""
    kernels: Callable[[Op], float] | None = None
    """The seconds of an operator's kernels where each operator was timed itself; None: `kernels.py` computes them."""
    queued: bool
    """Whether the host continues with the next operator while the device computes."""
    source: str
    autotuned: bool = False
    """Whether cuDNN's algorithms were timed before training and the fastest are used (`cudnn.benchmark`)."""
    tensor_cores: TensorCoreConvolutions | None = None
    """How convolutions use tensor cores; None if the device has none."""


def scale_curve(curve: Curve, peak_rate: float) -> Curve:
    """Return the curve scaled to end at `peak_rate`: sizes and rates grow by the same ratio, so times stay the same."""
    curve_peak = curve[-1][1]
    return tuple((size + math.log10(peak_rate / curve_peak), peak_rate * rate / curve_peak) for size, rate in curve)


_T4_PRODUCTS: Curve = ((7.0, 0.92e12), (7.5, 2.22e12), (8.0, 3.20e12), (8.5, 3.48e12))
"""`benchmarks/time/derive.py` on NeuSight's timings, with one rate from 10^8.5 FLOPs on. In isolation a short kernel
runs at 4.6 TFLOP/s and one of 30 ms at 3.2, since the card lowers its clock at 70 W; in training consecutive kernels
run at one clock."""

_T4_CONVOLUTIONS: Curve = (
    (8.0, 0.49e12), (8.5, 1.34e12), (9.0, 2.44e12), (9.5, 4.61e12), (10.0, 6.64e12), (10.5, 9.30e12), (11.0, 12.50e12),
)  # fmt: skip
"""From the same source, which timed only the forward pass; both gradients use the same curve, because DeepBench's 3x3
gradients of the input and of the weight take as long as the forward pass (1.03 and 0.98 times on a T4, 0.99 and 1.00 on
a P100, 0.99 and 0.95 on a V100, medians of 22 to 29 convolutions)."""

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

_T4_TENSOR_CORES = TensorCoreConvolutions(share=1.0, weight_tile=128, start_seconds=15e-6, transpose_share=0.72)
"""The first three are from DeepBench's 16-bit timings on a T4 (baidu-research/DeepBench at da81ba7,
`results/train/DeepBench_NV_T4.xlsx`, cuDNN 7.6.2), where large convolutions and large products both reach 40 TFLOP/s.
That is more than `_T4_HALF` because their tensors contain zeros (`tensor.h` copies uniform floats to integers), so the
card is far from its limit of power.

The bandwidth of transposes is from a profile of ResNet-50 in fp16, channels first, 64 images, on an RTX 2080 Ti, a GPU
of the same generation (apache/mxnet#17665): 200 calls of `nchwToNhwcKernel` take 15.5 ms a step and move 5.0 GB by the
count of `planning/estimate/convolutions.py` (220 calls), at 72% of the bandwidth of the ReLUs' gradients. In the same
way a V100 has 47% (PaddlePaddle/Paddle#19425: 226 calls), and an A100 100%, where cuDNN 8 computes more convolutions
directly (a table of torch's profiler in a public repository: 158 calls)."""

_RENTED_HOST = (10e-6, 15e-6, 30e-6)
"""Eager PyTorch's time from one operator to the next on the hosts of rented GPUs. The typical value is from NeuSight's
smallest elementwise operators on a T4: 25 us between two events, of which 10 are those of the events, as its timings of
operators without a kernel show (`getitem` and `size` in `scripts/asplos/label/Tesla_T4`). The low and high values are
assumptions: clocks of rented processors differ by a factor of 1.5, and their cores may be shared."""

_RENTED_VIEW = 4e-6
"""From the same timings: `view`, `permute` and `transpose` have 14 us between the events."""

_CALL_FACTORS: Mapping[HostKind, float] = {"product": 1.7, "convolution": 3.3, "norm": 1.9}
"""From NeuSight's smallest operators too, less the events and the Python functions of modules: 26 us for `bmm`, 51 for
a convolution and 30 for LayerNorm, where elementwise operators have 15."""

_RENTED_PYTHON = (1.1e-6, 1.7e-6, 3.4e-6)
"""The time of a Python function on the hosts of rented GPUs. The typical value is from NeuSight's smallest operators:
the three functions of a call of `nn.GELU` take 5.1 us (30.5, where `torch.tanh` has 25.4 without any), the four of
`nn.ReLU` 6.6 and those of `nn.Dropout` in evaluation 6.4. On a CPU of 2023, where those of `nn.GELU` take 0.5 us each,
the functions of Llama with peft take 0.6; versions of Python after NeuSight's are faster by about the same ratio. The
low and high values are in the ratios of those of operators."""

_OWN_HOST = (6e-6, 15e-6, 40e-6)
"""The same on a CPU of 2023: 17 us including views and Python, measured with the update of an MLP of 1,700 parameters
(torch 2.13). The low and high values are assumptions."""

_T4 = Rates(
    products=_T4_PRODUCTS,
    convolutions=_T4_CONVOLUTIONS,
    half={"fp16": _T4_HALF, "bf16": _T4_PRODUCTS[-1][1]},
    half_attention=_T4_HALF_ATTENTION,
    bandwidth={"elementwise": 240e9, "softmax": 193e9, "norm": 154e9},
    kernel_seconds=4e-6,
    call_seconds=_RENTED_HOST,
    view_seconds=_RENTED_VIEW,
    call_factors=_CALL_FACTORS,
    python_seconds=_RENTED_PYTHON,
    queued=True,
    source=(
        "kernels timed on a T4: fp32 and memory by NeuSight (sitar-lab/NeuSight), fp16 products on NVIDIA's forum (24 "
        "TFLOP/s), attention by flash-attention#2379, fp16 convolutions by DeepBench; the host's 15 us, and 1.7 for a "
        "Python function, by NeuSight's "
        "smallest operators"
    ),
    tensor_cores=_T4_TENSOR_CORES,
)

_P100_PRODUCTS: Curve = (
    (7.0, 0.50e12), (7.5, 1.42e12), (8.0, 3.13e12), (8.5, 3.92e12), (9.0, 5.34e12), (9.5, 6.23e12), (10.0, 6.51e12),
)  # fmt: skip
_P100_CONVOLUTIONS: Curve = (
    (8.0, 0.31e12), (8.5, 0.96e12), (9.0, 2.22e12), (9.5, 5.16e12), (10.0, 8.91e12), (10.5, 13.66e12), (11.0, 18.38e12),
)  # fmt: skip
"""`benchmarks/time/derive.py` on NeuSight's timings of a P100 (PCIe, 16 GB). The first rate of convolutions is 0.28
there, with which a convolution of three times the size would take less time."""

_P100 = replace(
    _T4,
    products=_P100_PRODUCTS,
    convolutions=_P100_CONVOLUTIONS,
    half={"fp16": _P100_PRODUCTS[-1][1], "bf16": _P100_PRODUCTS[-1][1]},
    bandwidth={"elementwise": 523e9, "softmax": 284e9, "norm": 304e9},
    source=(
        "kernels timed on a P100 by NeuSight (sitar-lab/NeuSight), in fp32; the host's 15 us, and 1.7 for a Python "
        "function, by NeuSight's smallest operators on a T4"
    ),
    tensor_cores=None,
)
"""Without tensor cores products in 16 bits are not faster: large ones take equally long in fp32 and with inputs of 16
bits (8.9 and 8.8 TFLOP/s by an older cuBLAS in DeepBench, `results/train/DeepBench_NV_P100.xlsx`)."""

_V100_PCIE_PRODUCTS: Curve = (
    (7.0, 0.74e12), (7.5, 2.20e12), (8.0, 6.13e12), (8.5, 9.07e12), (9.0, 10.21e12), (9.5, 11.12e12), (10.0, 11.94e12),
    (10.5, 12.08e12), (11.0, 12.30e12),
)  # fmt: skip
_V100_PCIE_CONVOLUTIONS: Curve = (
    (8.0, 0.82e12), (8.5, 2.07e12), (9.0, 4.47e12), (9.5, 9.38e12), (10.0, 14.83e12), (10.5, 21.45e12),
    (11.0, 29.16e12),
)  # fmt: skip
"""`benchmarks/time/derive.py` on NeuSight's timings of a V100 (PCIe, 32 GB)."""

_V100_RATE = 13.2e12
"""The catalog's V100 is the SXM2 card. Large products in fp32 on that of a DGX-1: the median of 74 products of more
than 10^10.5 FLOPs in DeepBench (`results/train/DeepBench_NV_V100.xlsx`)."""

_V100_HALF = 83e12
"""cuBLAS with tensor cores on a V100: arXiv 1803.04014. DeepBench has 99 TFLOP/s on a DGX-1 for tensors of zeros, with
which the card is far from its limit of power."""

_V100 = replace(
    _T4,
    products=scale_curve(_V100_PCIE_PRODUCTS, _V100_RATE),
    convolutions=scale_curve(
        _V100_PCIE_CONVOLUTIONS, _V100_PCIE_CONVOLUTIONS[-1][1] * _V100_RATE / _V100_PCIE_PRODUCTS[-1][1]
    ),
    half={"fp16": _V100_HALF, "bf16": _V100_RATE},
    bandwidth={"elementwise": 766e9, "softmax": 539e9, "norm": 481e9},
    source=(
        "kernels timed on a V100: fp32 and memory by NeuSight (sitar-lab/NeuSight) and DeepBench, fp16 products by "
        "Markidis and others (arXiv 1803.04014: 83 TFLOP/s), fp16 convolutions by DeepBench; attention in fp16 as on a "
        "T4; the host's 15 us, and 1.7 for a Python function, by NeuSight's smallest operators on a T4"
    ),
    tensor_cores=replace(_T4_TENSOR_CORES, share=0.88, weight_tile=64, transpose_share=0.47),
)
"""The share is that of DeepBench's convolutions of more than 0.2 ms, compared with its products. The tile is from there
too: the weight's gradient of 64 channels takes no longer per FLOP than that of 128. The bandwidth of transposes is from
the profile that `_T4_TENSOR_CORES` names."""

MEASURED_RATES: Mapping[str, Rates] = {"t4": _T4, "p100": _P100, "v100": _V100}

_UNTIMED_FP32 = 0.53
_UNTIMED_HALF = 0.32
_UNTIMED_BANDWIDTH = 0.75
"""Assumed shares of a data sheet's rates for a GPU whose kernels were not timed, between those of a T4 (0.43, 0.37 and
0.75) and the 75% that torch's own estimator assumes."""


_UNTIMED_TENSOR_CORES = replace(_T4_TENSOR_CORES, share=0.5 / _UNTIMED_HALF, weight_tile=64)
"""Large convolutions reach 72% of a V100's data sheet in DeepBench, with zeros, and products 37% of a T4's at its limit
of power: half is assumed. On a V100 the weight's gradient of 64 channels takes no longer per FLOP than that of 128."""


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
    return replace(  # the host, whose times nobody has measured beside another GPU, is that of a T4
        _T4,
        products=scale_curve(_T4_PRODUCTS, fp32),
        convolutions=scale_curve(_T4_CONVOLUTIONS, fp32 * _T4_CONVOLUTIONS[-1][1] / _T4_PRODUCTS[-1][1]),
        half={
            "fp16": device.fp16_flops * _UNTIMED_HALF if device.fp16_flops else fp32,
            "bf16": device.bf16_flops * _UNTIMED_HALF if device.bf16_flops else fp32,
        },
        half_attention=_FLASH if device.flash_attention else _T4_HALF_ATTENTION,
        bandwidth={kind: sustained_bandwidth * rate / t4_bandwidth for kind, rate in _T4.bandwidth.items()},
        source=(
            "no kernel was timed on this GPU: a T4's curves, scaled to 53% (fp32), 32% (16 bits) and 75% (memory) of "
            "the data sheet"
        ),
        tensor_cores=_UNTIMED_TENSOR_CORES
        if device.compute_capability and device.compute_capability >= (7, 0)
        else None,
    )


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
