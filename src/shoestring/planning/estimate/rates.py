"""Rates that GPUs sustain in training, compared with their data sheets; each number has its source."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from statistics import median
from typing import Literal, get_args

from shoestring.base.settings import Precision
from shoestring.hardware.catalog import DEVICES, Device
from shoestring.planning.trace.record import Op, PhaseName

Curve = tuple[tuple[float, float], ...]
"""Points of log10 of an operator's FLOPs and the FLOP/s at that size, both ascending, so that one large operator is
never slower than several small ones."""

Kind = Literal["elementwise", "softmax", "norm"]

HostKind = Literal["product", "convolution", "norm"]

Basis = Literal["timed", "published", "similar"]
"""What rates come from: kernels timed on such a device, published rates of it, or those of similar devices."""


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
    tf32: float | None = None
    """Large matrix products of fp32 data in TF32, FLOP/s; None if the device has no TF32. PyTorch allows it for
    convolutions by default."""
    tf32_products: bool = False
    """Whether TF32 is allowed for matrix products too (`Settings.tf32`)."""
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
    basis: Basis = "timed"
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

_V100_HALF = 95e12
"""cuBLAS with tensor cores on a V100: mli/transformers-benchmarks 95, mag-/gpu_benchmark 94.0 and 96.1,
zzc0721/torch-performance-test-data 94.8. An older version reached 83 (arXiv 1803.04014). DeepBench has 99 on a DGX-1
for tensors of zeros, with which the card is far from its limit of power."""

_V100 = replace(
    _T4,
    products=scale_curve(_V100_PCIE_PRODUCTS, _V100_RATE),
    convolutions=scale_curve(
        _V100_PCIE_CONVOLUTIONS, _V100_PCIE_CONVOLUTIONS[-1][1] * _V100_RATE / _V100_PCIE_PRODUCTS[-1][1]
    ),
    half={"fp16": _V100_HALF, "bf16": _V100_RATE},
    bandwidth={"elementwise": 766e9, "softmax": 539e9, "norm": 481e9},
    source=(
        "kernels timed on a V100: fp32 and memory by NeuSight (sitar-lab/NeuSight) and DeepBench, fp16 products "
        "published (mli/transformers-benchmarks and others: 95 TFLOP/s), fp16 convolutions by DeepBench; attention in "
        "fp16 as on a T4; the host's 15 us, and 1.7 for a Python function, by NeuSight's smallest operators on a T4"
    ),
    tensor_cores=replace(_T4_TENSOR_CORES, share=0.88, weight_tile=64, transpose_share=0.47),
)
"""The share is that of DeepBench's convolutions of more than 0.2 ms, compared with its products. The tile is from there
too: the weight's gradient of 64 channels takes no longer per FLOP than that of 128. The bandwidth of transposes is from
the profile that `_T4_TENSOR_CORES` names."""

_A100_PRODUCTS: Curve = (
    (7.0, 1.12e12), (7.5, 2.78e12), (8.0, 5.88e12), (8.5, 8.24e12), (9.0, 9.48e12), (9.5, 12.93e12), (10.0, 14.68e12),
    (10.5, 15.25e12), (11.0, 15.58e12), (11.5, 15.76e12), (12.0, 16.21e12),
)  # fmt: skip
_A100_CONVOLUTIONS: Curve = (
    (8.0, 0.88e12), (8.5, 2.23e12), (9.0, 4.32e12), (9.5, 9.83e12), (10.0, 16.48e12), (10.5, 25.93e12),
    (11.0, 34.63e12),
)  # fmt: skip
"""`benchmarks/time/derive.py` on NeuSight's timings of an A100 (PCIe, 40 GB), with TF32 off; those of convolutions are
of an A100 of 80 GB."""

_A100_80_RATE = 18.4e12
"""Large products in fp32 on an A100 of 80 GB (PCIe): the curve that `derive.py` makes of NeuSight's 3,500 timings in
`scripts/asplos/data/dataset/test`. The bandwidths below are from there too (1,670, 1,321 and 1,151 GB/s), scaled from
the memory of that card, 1,935 GB/s, to the 2,039 of the SXM card."""

_L4_PRODUCTS: Curve = (
    (8.5, 4.05e12), (9.0, 4.98e12), (9.5, 6.36e12), (10.0, 7.66e12), (10.5, 7.90e12),
)  # fmt: skip
_H100_PRODUCTS: Curve = (
    (8.5, 13.93e12), (9.0, 24.57e12), (9.5, 33.21e12), (10.0, 38.74e12), (10.5, 43.30e12), (11.0, 47.23e12),
    (11.5, 50.08e12), (12.0, 51.10e12),
)  # fmt: skip
"""From the same 3,100 and 3,500 timings of an L4 and an H100 (SXM). At its limit of 72 W an L4 sustains half of what it
reaches for moments."""


def _ampere(
    device: Device, products: Curve, bandwidth: Mapping[Kind, float], timings: str, *, basis: Basis = "timed"
) -> Rates:
    """Return the rates of an NVIDIA GPU from compute capability 8.0 on, with timed products in fp32.

    Its other rates were published. With cuDNN 8 an A100 transposes images at the bandwidth of elementwise kernels
    (`_T4_TENSOR_CORES`); its convolutions are taken to use tensor cores as those of a V100 do, whose cuDNN is the
    newest that DeepBench timed.
    """
    assert _V100.tensor_cores
    return replace(
        _T4,
        products=products,
        convolutions=scale_curve(
            _A100_CONVOLUTIONS, _A100_CONVOLUTIONS[-1][1] * products[-1][1] / _A100_PRODUCTS[-1][1]
        ),
        half={
            "fp16": sustained_rate(device, "fp16_flops") or 0.0,
            "bf16": sustained_rate(device, "bf16_flops") or 0.0,
        },
        tf32=sustained_rate(device, "tf32_flops"),
        half_attention=_FLASH,
        bandwidth=bandwidth,
        source=(
            f"{timings} by NeuSight (sitar-lab/NeuSight); 16 bits and TF32 as published "
            f"({device.sources.get('sustained.fp16_flops', 'of similar GPUs')}); the host's 15 us, and 1.7 for a "
            "Python function, by NeuSight's smallest operators on a T4"
        ),
        basis=basis,
        tensor_cores=replace(_V100.tensor_cores, transpose_share=1.0),
    )


@cache
def _timed_rates(name: str) -> Rates | None:
    """Return the rates of a GPU whose kernels others have timed, by its name in the catalogue; None for another one."""
    if name in MEASURED_RATES:
        return MEASURED_RATES[name]
    device = DEVICES.get(name)
    if device is None:
        return None
    if name == "a100-40":
        bandwidth: Mapping[Kind, float] = {"elementwise": 1230e9, "softmax": 872e9, "norm": 815e9}
        return _ampere(device, _A100_PRODUCTS, bandwidth, "fp32 and memory timed on an A100")
    if name == "a100-80":
        bandwidth = {"elementwise": 1760e9, "softmax": 1392e9, "norm": 1213e9}
        products = scale_curve(_A100_PRODUCTS, _A100_80_RATE)
        return _ampere(device, products, bandwidth, "fp32 and memory timed on an A100")
    if name == "l4":
        bandwidth = {"elementwise": 234e9, "softmax": 235e9, "norm": 232e9}
        timings = "fp32 products and memory timed on an L4"
        return _ampere(device, _L4_PRODUCTS, bandwidth, timings, basis="published")
    if name in ("h100", "h200"):
        wide = sustained_rate(device, "bandwidth") or 0.0
        bandwidth = {"elementwise": wide, "softmax": wide * 1321 / 1670, "norm": wide * 1151 / 1670}
        timings = "fp32 products timed on an H100"
        return _ampere(device, _H100_PRODUCTS, bandwidth, timings, basis="published")
    return None


MEASURED_RATES: Mapping[str, Rates] = {"t4": _T4, "p100": _P100, "v100": _V100, "v100-32": _V100}
"""The rates of GPUs without TF32 whose kernels others have timed."""

Quantity = Literal["fp32_flops", "tf32_flops", "fp16_flops", "bf16_flops", "bandwidth"]
"""A rate of a data sheet, and of `Device.sustained`."""

_LIMITED = frozenset(
    {"t4", "l4", "a2", "a16", "rtx4000sffada", "rtxa2000-6", "rtxa2000-12", "rtx2000ada", "rtxpro2000"}
)
"""Cards for slots without a power cable, which limits them to 75 W: they sustain a smaller share of their data sheet
than cards with the same chip."""


@lru_cache(maxsize=64)
def find_rates(device: Device) -> Rates | None:
    """Return the rates that the device sustains; None if the catalog lacks the rates of its data sheet."""
    if device.fp32_flops is None or device.bandwidth is None:
        return None
    if device.compute_capability is None:
        return _cpu_rates(device.fp32_flops, device.bandwidth)
    return _timed_rates(device.name) or published_rates(device)


def sustained_rate(device: Device, quantity: Quantity, without: Sequence[str] = ()) -> float | None:
    """Return the rate that others measured on such a device, or else what similar devices suggest.

    That is the median of their shares of their data sheets: of devices of the same kind (GeForce, a laptop's, a card
    without a power cable, or another one) and compute capability, or if there are none of the same kind, or of all.
    None if the data sheet has no such rate.
    """
    sheet: float | None = getattr(device, quantity)
    if not sheet:
        return None
    return device.sustained.get(quantity) or sheet * median(similar_shares(device, quantity, without))


def similar_shares(device: Device, quantity: Quantity, without: Sequence[str] = ()) -> list[float]:
    """Return the published shares of their data sheets that the devices most similar to this one sustain.

    Devices `without` are left out.
    """
    shares = [(other, share) for other, share in _published_shares(quantity) if other.name not in without]
    kind, capability = _kind(device), device.compute_capability
    for chosen in (
        [share for other, share in shares if (_kind(other), other.compute_capability) == (kind, capability)],
        [share for other, share in shares if _kind(other) == kind],
        [share for _, share in shares],
    ):
        if chosen:
            return chosen
    return [1.0]


@cache
def _published_shares(quantity: Quantity) -> Sequence[tuple[Device, float]]:
    return [
        (device, device.sustained[quantity] / sheet)
        for device in DEVICES.values()
        if quantity in device.sustained and (sheet := getattr(device, quantity))
    ]


def _kind(device: Device) -> str:
    if device.name in _LIMITED:
        return "limited"
    return "laptop" if "laptop" in device.name else "geforce" if "GeForce" in device.title else "professional"


def published_rates(device: Device, *, curves: str = "", without: Sequence[str] = ()) -> Rates:
    """Return the curves of the nearest generation that was timed, scaled to what this GPU sustains.

    `curves` names another GPU whose curves are used; the published rates of devices `without` are not.

    They are scaled in size and rate by the same ratio, so that a product needs as much time as on the timed GPU to
    reach the same share of its rate. Small products are slow because they fill the multiprocessors partly, and because
    a thread block has a minimum time. More multiprocessors need a larger product to be filled, and faster ones do it in
    less time. In the timed curves half of the rate is reached by products of 13 us on a T4, 16 on a V100, 32 on a P100,
    37 on an A100 and 42 on an H100, whose FLOPs differ by a factor of 46; so an A100's curve serves for all later GPUs.
    """
    rates = {name: sustained_rate(device, name, without) for name in get_args(Quantity)}
    fp32, bandwidth = rates["fp32_flops"] or 0.0, rates["bandwidth"] or 0.0
    has_flash = device.flash_attention
    timed = _timed_rates(curves or ("a100-40" if has_flash else "v100"))
    assert timed
    wide = timed.bandwidth["elementwise"]
    shares = {
        title: f"{rate / getattr(device, name):.0%} ({title})"
        for name, title in _QUANTITY_TITLES.items()
        if (rate := rates[name])
    }
    published = [shares[title] for name, title in _QUANTITY_TITLES.items() if rates[name] and name in device.sustained]
    similar = [share for share in shares.values() if share not in published]
    origins = [f"{', '.join(published)} as published"] if published else []
    origins += [f"{', '.join(similar)} as measured on similar GPUs"] if similar else []
    has_products = any(name in device.sustained for name in ("fp16_flops", "fp32_flops"))
    return replace(  # the host, whose times nobody has measured beside another GPU, is that of a T4
        timed,
        products=scale_curve(timed.products, fp32),
        convolutions=scale_curve(timed.convolutions, fp32 * timed.convolutions[-1][1] / timed.products[-1][1]),
        half={"fp16": rates["fp16_flops"] or fp32, "bf16": rates["bf16_flops"] or fp32},
        tf32=rates["tf32_flops"],
        half_attention=_FLASH if has_flash else _T4_HALF_ATTENTION,
        bandwidth={kind: bandwidth * rate / wide for kind, rate in timed.bandwidth.items()},
        basis="published" if has_products else "similar",
        source=(
            f"no kernel was timed on this GPU: {'an A100' if has_flash else 'a V100'}'s curves, scaled to shares of "
            f"its data sheet: {'; '.join(origins)}"
        ),
        tensor_cores=timed.tensor_cores if (device.compute_capability or (0, 0)) >= (7, 0) else None,
    )


_QUANTITY_TITLES: Mapping[Quantity, str] = {
    "fp32_flops": "fp32",
    "tf32_flops": "TF32",
    "fp16_flops": "16 bits",
    "bandwidth": "memory",
}


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
