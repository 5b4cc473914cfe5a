"""Small files of measured rates, with round numbers: of a T4, of a GPU that no catalogue has, and of a CPU."""

from dataclasses import replace
from pathlib import Path

from shoestring.base.settings import Precision
from shoestring.base.units import GIB
from shoestring.hardware.measured import CopyTiming, MeasuredDevice, MeasuredRates, OperatorTiming, Timing
from shoestring.hardware.measured_file import write_measured


def operator(
    name: str,
    seconds: float,
    *,
    shape: tuple[int, ...] = (),
    flops: int = 0,
    size: int = 1,
    precision: Precision = "fp32",
    launches: int = 1,
    layout: str = "",
) -> OperatorTiming:
    return OperatorTiming(
        seconds=seconds,
        low=0.9 * seconds,
        high=1.2 * seconds,
        operator=name,
        precision=precision,
        layout=layout,
        flops=flops,
        bytes=size,
        launches=launches,
        shape=shape,
    )


def timing(seconds: float) -> Timing:
    return Timing(seconds=seconds, low=0.9 * seconds, high=1.2 * seconds)


def _product(side: int, rate: float, precision: Precision = "fp32") -> OperatorTiming:
    flops = 2 * side**3
    return operator("aten::mm", flops / rate, shape=(1, side, side, side), flops=flops, size=12 * side**2,
                    precision=precision)  # fmt: skip


GPU = MeasuredRates(
    date="2026-11-24T10:00:00+00:00",
    device=MeasuredDevice(
        name="t4", title="NVIDIA T4", kind="cuda", memory_bytes=14 * GIB, compute_capability=(7, 5), gpus=2, cores=4,
        threads=2,
    ),
    versions={"torch": "2.13.0", "cuda": "12.6"},
    operators=(
        _product(256, 1e12), _product(4096, 4e12), _product(4096, 20e12, "fp16"),
        operator("aten::convolution", 1e-3, shape=(1, 3136, 64, 576, 3, 3, 56, 56, 1, 1, 0), flops=2 * 3136 * 64 * 576,
                 layout="channels_first"),
        operator("aten::_scaled_dot_product_efficient_attention", 1e-3, shape=(96, 512, 512, 64), flops=5 * 10**9,
                 precision="fp16"),
        operator("aten::add.Tensor", 1e-3, size=200 * 10**6),
        operator("aten::add.Tensor", 1e-5, size=10**4),
        operator("aten::_softmax", 1e-3, size=150 * 10**6),
        operator("aten::native_layer_norm", 1e-3, size=100 * 10**6),
    ),
    host={
        name: timing(seconds)
        for name, seconds in (
            ("call", 5e-6), ("view", 2e-6), ("forward", 20e-6), ("backward", 10e-6), ("optimizer", 5e-6),
            ("kernel", 3e-6),
        )
    },
    copies=(CopyTiming(kind="host to device", bytes=10**8, **vars(timing(0.01))),),
)  # fmt: skip

UNLISTED = replace(
    GPU, device=replace(GPU.device, name="rtx9", title="NVIDIA RTX 9", compute_capability=(12, 0), gpus=1)
)

CPU = MeasuredRates(
    date="2026-11-24T10:00:00+00:00",
    device=MeasuredDevice(
        name="cpu", title="A CPU", kind="cpu", memory_bytes=8 * GIB, compute_capability=None, gpus=0, cores=2, threads=2
    ),
    versions={"torch": "2.13.0"},
    warnings=("the CPU was in use",),
    operators=(
        _product(64, 50e9), _product(1024, 100e9),
        operator("aten::bmm", 1e-3, shape=(16, 64, 64, 64), flops=8388608, size=10**6),
        operator("aten::convolution", 2e-3, shape=(1, 512, 32, 288, 3, 3, 8, 8, 1, 1, 0), flops=2 * 512 * 32 * 288),
        operator("shoestring::recurrent", 1e-3, flops=10**7, launches=10),
        operator("aten::add.Tensor", 12e-6, size=10**5), operator("aten::add.Tensor", 1002e-6, size=10**7),
        operator("aten::add_.Tensor", 502e-6, size=10**7),
        operator("aten::tanh", 8002e-6, size=10**7),
        operator("aten::_softmax", 3e-3, size=10**7),
        operator("aten::native_layer_norm", 2e-3, size=10**7),
    ),
    host={
        name: timing(seconds)
        for name, seconds in (
            ("call", 2e-6), ("view", 1e-6), ("forward", 10e-6), ("backward", 8e-6), ("optimizer", 4e-6)
        )
    },
)  # fmt: skip


def write(folder: Path, measured: MeasuredRates, name: str = "rates.json") -> Path:
    path = folder / name
    write_measured(path, measured)
    return path
