"""Seconds of an update, from a trace: each operator takes its arithmetic, its bytes or its launch, the longest."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from shoestring.hardware.catalog import Device
from shoestring.settings import Precision
from shoestring.trace.record import Op, Phase, Trace


@dataclass(frozen=True, kw_only=True)
class Seconds:
    """An estimate of the time, with its range; `parts` by phase sum to `value`."""

    parts: Mapping[str, float]
    low: float
    high: float
    source: str

    @property
    def value(self) -> float:
        return sum(self.parts.values())


@dataclass(frozen=True, kw_only=True)
class Sustained:
    """What training reaches of a datasheet's rates, and how far off the time may be."""

    fp32: float
    half: float
    bandwidth: float
    operator_seconds: float
    """Least time from one operator to the next: eager PyTorch's own work on the host."""
    low: float
    high: float
    """Factors on the estimated time."""
    source: str


SUSTAINED = {
    "t4": Sustained(
        fp32=3.0 / 8.1,
        half=9.0 / 65.0,
        bandwidth=239 / 320,
        operator_seconds=10e-6,
        low=0.6,
        high=2.0,
        source=(
            "training runs on a T4: 2.6-4.9 TFLOP/s in fp32 (BERT-base, GPT, ResNet18), 8.5-9.3 in fp16; bandwidth as"
            " Habitat measured it; small models reach a third of what large ones do"
        ),
    ),
}

ANY_GPU = Sustained(
    fp32=0.53,
    half=0.32,
    bandwidth=0.75,
    operator_seconds=10e-6,
    low=0.5,
    high=2.5,
    source="no training run on this GPU: between what a T4 reaches and the 75% of peak torch's RuntimeEstimator takes",
)

CPU = Sustained(
    fp32=1.0,
    half=1.0,
    bandwidth=1.0,
    operator_seconds=5e-6,
    low=0.5,
    high=2.5,
    source="rates measured on this machine; half precision and small operators reach less",
)

_KERNEL_SECONDS = 5e-6
"""Of each kernel after another within one operator: about what a launch takes on CUDA."""


def sustained(device: Device) -> Sustained:
    """The table's line for a device."""
    return CPU if device.compute_capability is None else SUSTAINED.get(device.name, ANY_GPU)


def update_seconds(trace: Trace, device: Device, microbatches: int) -> Seconds | None:
    """One update of so many microbatches on `device`: forward and backward of each, the optimizer once.

    None where the catalogue does not know the device's rates.
    """
    if device.fp32_flops is None or device.bandwidth is None:
        return None
    rates = sustained(device)
    flops = _flops_per_second(device, device.fp32_flops, rates)
    bandwidth = device.bandwidth * rates.bandwidth
    times: dict[tuple[str, int], float] = defaultdict(float)
    phase: Phase | None = None
    for event in trace.events:
        if isinstance(event, Phase):
            phase = event
        elif isinstance(event, Op) and phase and phase.update == 1:
            times[phase.name, phase.microbatch] += max(
                event.flops / flops[event.precision],
                event.bytes / bandwidth,
                rates.operator_seconds,
                (event.launches - 1) * _KERNEL_SECONDS,
            )
    later = trace.microbatches - 1
    parts = {name: times[name, 0] + (microbatches - 1) * times[name, later] for name in ("forward", "backward")}
    parts["optimizer"] = times["optimizer", 0]
    value = sum(parts.values())
    return Seconds(parts=parts, low=value * rates.low, high=value * rates.high, source=rates.source)


def _flops_per_second(device: Device, fp32_flops: float, rates: Sustained) -> dict[Precision, float]:
    """What is sustained in each precision; without units of its own a 16-bit type runs at the pace of fp32 at best."""
    fp32 = fp32_flops * rates.fp32
    return {
        "fp32": fp32,
        "fp16": device.fp16_flops * rates.half if device.fp16_flops else fp32,
        "bf16": device.bf16_flops * rates.half if device.bf16_flops else fp32,
    }
