"""The time of an update whose model is divided between two GPUs of one process (`sharding=pipeline`)."""

from __future__ import annotations

from shoestring.hardware.catalog import Device
from shoestring.planning.estimate.exchange import link_of
from shoestring.planning.estimate.kernels import call_factor
from shoestring.planning.estimate.measured_rates import rates_of
from shoestring.planning.estimate.time import Seconds
from shoestring.planning.trace.record import BETWEEN_GPUS, Op, Phase, Trace

PASSES = ("forward", "backward")


def pipeline_seconds(trace: Trace, first: Seconds, second: Seconds, device: Device, microbatches: float) -> Seconds:
    """Combine the estimates of the two parts of an update, whose trace has both.

    While a GPU computes a microbatch, the other one computes its neighbour, so all but one of the microbatches take the
    time of the slower part, and one that of both. One thread of the host launches the operators of both GPUs, which
    may take longer. What is copied between the GPUs keeps both waiting. The optimizer's steps run at the same time.

    The low and the high end are further from the value than those of the parts: no update of this kind was measured.
    The high end has no computation of one GPU during that of the other.
    """
    passes_of_parts = [sum(part.parts[name] for name in PASSES) for part in (first, second)]
    both = sum(passes_of_parts)
    overlapped = max(passes_of_parts) + min(passes_of_parts) / microbatches
    passes = max(overlapped, min(both, host_seconds(trace, device, microbatches)))
    link = link_of(device)
    exchange = microbatches * copied_bytes(trace) / link.bandwidth
    optimizer = max(part.parts["optimizer"] for part in (first, second))
    parts = {name: passes * (first.parts[name] + second.parts[name]) / (both or 1.0) for name in PASSES}
    value = passes + exchange + optimizer
    total = first.value + second.value
    if not total:
        return first
    return Seconds(
        parts={**parts, "exchange": exchange, "optimizer": optimizer},
        low=value * (first.low + second.low) / total,
        high=(both + exchange / link.slowest + optimizer) * (first.high + second.high) / total,
        source=f"{first.source}; between the GPUs: {link.source}",
        calibration=first.calibration,
        range_names=first.range_names,
    )


def copied_bytes(trace: Trace) -> int:
    """Return the bytes that a microbatch copies between the GPUs: hidden states, their gradients and the batch."""
    last = max(0, trace.microbatches - 1)
    return sum(
        event.bytes // 2  # read on one and written on the other
        for phase, event in _operators(trace)
        if event.name == BETWEEN_GPUS and phase.microbatch == last
    )


def host_seconds(trace: Trace, device: Device, microbatches: float) -> float:
    """Return the seconds in which the host launches forward and backward of all microbatches on both GPUs."""
    rates = rates_of(device)
    if rates is None:
        return 0.0
    last = max(0, trace.microbatches - 1)
    seconds = 0.0
    for phase, event in _operators(trace):
        if phase.microbatch == last:
            share = call_factor(event, rates) * rates.call_shares.get(phase.name, 1.0)
            seconds += share * rates.call_seconds[1] + (event.calls - 1) * rates.view_seconds
            seconds += event.python_calls * rates.python_seconds[1]
    return microbatches * seconds


def _operators(trace: Trace) -> list[tuple[Phase, Op]]:
    """Return the operators of forward and backward of the measured update, of both GPUs, with their phases."""
    operators: list[tuple[Phase, Op]] = []
    for of_gpu in (trace, trace.second):
        phase: Phase | None = None
        for event in of_gpu.events if of_gpu else ():
            if isinstance(event, Phase):
                phase = event
            elif isinstance(event, Op) and phase and phase.update == 1 and phase.name in PASSES:
                operators.append((phase, event))
    return operators
