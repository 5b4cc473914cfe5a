"""Seconds of an update, from a trace: a host that asks for operators, and a device that works them off behind it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from shoestring.estimate.calibration import Calibration
from shoestring.estimate.exchange import LINKS, Link, exposed_seconds
from shoestring.estimate.kernels import kernel_seconds
from shoestring.estimate.rates import Rates, rates
from shoestring.estimate.spread import spread
from shoestring.hardware.catalog import Device
from shoestring.trace.record import Op, Phase, Trace


@dataclass(frozen=True, kw_only=True)
class Seconds:
    """An estimate of the time, with its range; `parts` by phase sum to `value`."""

    parts: Mapping[str, float]
    """`forward`, `backward` and `optimizer`; among several GPUs `exchange`, what of it training waits for."""
    low: float
    high: float
    source: str
    calibration: float = 1.0
    """The factor by which a run's measurements have changed it."""

    @property
    def value(self) -> float:
        return sum(self.parts.values())


def update_seconds(
    trace: Trace,
    device: Device,
    microbatches: int,
    *,
    gpus: int = 1,
    calibration: Calibration | None = None,
    link: Link | None = None,
    without: str | None = None,
    cuda_graphs: bool = False,
) -> Seconds | None:
    """One update of so many microbatches on `device`: forward and backward of each, the optimizer once.

    Of `gpus` the trace is one's, and gradients go over `link` (by default two T4s' on PCIe) while backward runs. Where
    microbatches are `captured` as CUDA graphs the host asks for all of one at once, which takes no time here.
    `calibration` is what a run on the same device measured. Nothing that `without` measured, a word in the name of a
    source, enters: its rows are not predicted from themselves. None where the catalogue does not know the device's
    rates. Input, saving and evaluation are not in it.
    """
    known = rates(device)
    if known is None:
        return None
    low, typical, high = (_by_phase(trace, microbatches, known, call, cuda_graphs) for call in known.call_seconds)
    if gpus > 1:
        gradients = trace.facts.parameters_trainable * _GRADIENT_BYTES
        moved = 4 * gradients / known.bandwidth["elementwise"]  # into the buckets and back
        chosen = link or next(link for link in LINKS if not without or without not in link.source)
        for parts in (low, typical, high):
            parts["exchange"] = moved + exposed_seconds(gradients, gpus, chosen, parts["backward"] / microbatches)
    if calibration and calibration.device == device.title:
        width, factor = calibration.spread, calibration.factor
        parts = {name: each * factor for name, each in typical.items()}
        value = sum(parts.values())
        ends = (value * width.low, value * width.high)
        return Seconds(parts=parts, low=ends[0], high=ends[1], source=width.source, calibration=factor)
    scored = spread(device, without)
    return Seconds(
        parts=typical,
        low=sum(low.values()) * scored.low,
        high=sum(high.values()) * scored.high,
        source=f"{known.source}; range: {scored.source}",
    )


_GRADIENT_BYTES = 4
"""Trained weights and so their gradients are fp32; autocast's copies are not exchanged."""


def _by_phase(
    trace: Trace, microbatches: int, known: Rates, call_seconds: float, cuda_graphs: bool
) -> dict[str, float]:
    """The phases' seconds until the device is done with them. The host begins each update when the device is idle,
    since it has read the loss, and runs ahead from there."""
    times: dict[tuple[str, int], float] = defaultdict(float)
    phase: Phase | None = None
    asked = done = 0.0
    for event in trace.events:
        if isinstance(event, Phase):
            phase = event
        elif isinstance(event, Op) and phase and phase.update == 1:
            before = done
            if not cuda_graphs or phase.name == "optimizer":
                asked += call_seconds + (event.calls - 1) * known.view_seconds
            work = kernel_seconds(event, known)
            done = max(done, asked) + work if known.queued else max(asked, done + work)
            asked = asked if known.queued else done
            times[phase.name, phase.microbatch] += done - before
    later = trace.microbatches - 1
    parts = {name: times[name, 0] + (microbatches - 1) * times[name, later] for name in ("forward", "backward")}
    return {**parts, "optimizer": times["optimizer", 0]}
