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
    """The fractions of a device's rates that training reaches."""

    fp32: float
    half: float
    bandwidth: float
    low: float
    high: float
    """Factors on the time of arithmetic and bytes."""
    source: str


SUSTAINED = {
    "t4": Sustained(
        fp32=3.0 / 8.1,
        half=9.0 / 65.0,
        bandwidth=239 / 320,
        low=0.6,
        high=2.0,
        source=(
            "training runs on a T4: 2.6-4.9 TFLOP/s in fp32 (BERT-base, GPT, ResNet18), 8.5-9.3 in fp16, a third of"
            " that for small models; bandwidth as Habitat's tools measured it (geoffxy/habitat, devices.yml)"
        ),
    ),
}

ANY_GPU = Sustained(
    fp32=0.53,
    half=0.32,
    bandwidth=0.75,
    low=0.5,
    high=2.5,
    source="no training run on this GPU: between what a T4 reaches and the 75% of peak that torch's estimator takes",
)

CPU = Sustained(
    fp32=1.0,
    half=1.0,
    bandwidth=1.0,
    low=0.5,
    high=2.5,
    source="large products and copies measured on this machine; smaller ones reach less",
)

OPERATOR_SECONDS = (7e-6, 17e-6, 40e-6)
"""Least time from one operator to the next, low, typical and high: eager PyTorch's work on the host. Typical:
measured, the update of an MLP of 1,700 parameters on a CPU (torch 2.13, 0.65 ms for 37 operators). The ends are
assumptions: faster hosts below, the slower ones of free GPUs above."""

_KERNEL_SECONDS = 5e-6
"""Of each further kernel within one operator: about what a launch takes on CUDA; an assumption."""


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
    low, parts, high = (
        _by_phase(trace, microbatches, flops, bandwidth, factor, operator)
        for factor, operator in zip((rates.low, 1.0, rates.high), OPERATOR_SECONDS, strict=True)
    )
    return Seconds(parts=parts, low=sum(low.values()), high=sum(high.values()), source=rates.source)


def _by_phase(
    trace: Trace,
    microbatches: int,
    flops: Mapping[Precision, float],
    bandwidth: float,
    factor: float,
    operator_seconds: float,
) -> dict[str, float]:
    times: dict[tuple[str, int], float] = defaultdict(float)
    phase: Phase | None = None
    for event in trace.events:
        if isinstance(event, Phase):
            phase = event
        elif isinstance(event, Op) and phase and phase.update == 1:
            work = max(event.flops / flops[event.precision], event.bytes / bandwidth)
            launching = operator_seconds + (event.launches - 1) * _KERNEL_SECONDS
            times[phase.name, phase.microbatch] += max(work * factor, launching)
    later = trace.microbatches - 1
    parts = {name: times[name, 0] + (microbatches - 1) * times[name, later] for name in ("forward", "backward")}
    return {**parts, "optimizer": times["optimizer", 0]}


def _flops_per_second(device: Device, fp32_flops: float, rates: Sustained) -> dict[Precision, float]:
    """What is sustained in each precision; without units of its own a 16-bit type runs at the pace of fp32 at best."""
    fp32 = fp32_flops * rates.fp32
    return {
        "fp32": fp32,
        "fp16": device.fp16_flops * rates.half if device.fp16_flops else fp32,
        "bf16": device.bf16_flops * rates.half if device.bf16_flops else fp32,
    }
