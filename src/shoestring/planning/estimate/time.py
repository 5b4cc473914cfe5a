"""Estimate the seconds of an update from a trace: a host queues operators, and a device runs them asynchronously."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from shoestring.hardware.catalog import Device
from shoestring.planning.estimate.calibration import Calibration
from shoestring.planning.estimate.exchange import (
    GATHERS,
    Link,
    exposed_seconds,
    link_of,
    replica_seconds,
    sharded_seconds,
)
from shoestring.planning.estimate.host_link import Source, copy_rates, host_link_of
from shoestring.planning.estimate.kernels import call_factor, kernel_seconds
from shoestring.planning.estimate.measured_rates import rates_of
from shoestring.planning.estimate.rates import Rates
from shoestring.planning.estimate.spread import spread
from shoestring.planning.estimate.streaming import Pace, host_bytes, waiting_seconds
from shoestring.planning.trace.record import Alloc, Facts, Op, Phase, Repeat, Trace


@dataclass(frozen=True, kw_only=True)
class Seconds:
    """An estimate of the time, with its range; `parts` by phase sum to `value`."""

    parts: Mapping[str, float]
    """Seconds of `forward`, `backward` and `optimizer`; with several GPUs also `exchange`, the part not overlapped;
    with streamed blocks `streaming`, waiting for copies of their weights; of a recipe with a `rollout` whose steps are
    counted also `generation`."""
    low: float
    high: float
    source: str
    calibration: float = 1.0
    """The factor applied from a run's measurements."""
    range_names: tuple[str, ...] = ()
    """The publications whose measured updates the range comes from."""

    @property
    def value(self) -> float:
        return sum(self.parts.values())


def update_seconds(
    trace: Trace,
    device: Device,
    microbatches: float,
    *,
    work: float = 1.0,
    gpus: int = 1,
    sharding: str | None = "ddp",
    torch_ddp: bool = False,
    calibration: Calibration | None = None,
    link: Link | None = None,
    without: str | None = None,
    cuda_graphs: bool = False,
    cudnn_benchmark: bool = False,
    tf32: bool = False,
    compiled: bool = False,
    by_library: bool = False,
    streamed_blocks: int | None = None,
    stream_from: Source = "host",
    passes: int | None = None,
) -> Seconds | None:
    """Estimate one update of so many microbatches on `device`: forward and backward of each, and one optimizer step.

    A fraction of a microbatch is a smaller one. `work` is the share of the traced work of forward and backward that a
    microbatch has, in as many operators: that of shorter samples, for example.

    The trace is that of one of `gpus`, which exchange gradients over `link` (by default that of the device): from the
    last backward on, or after it in a CUDA graph and `by_library`; with FSDP2 (`sharding` zero2 or zero3) in each
    microbatch; and with `torch_ddp`, in torch's DistributedDataParallel, while the last backward runs. The high end of
    the range has the whole exchange after the computation. With `cuda_graphs` the host launches each microbatch at
    once, which counts as no time. With `cudnn_benchmark` convolutions run by cuDNN's fastest algorithms, with `tf32`
    matrix products of fp32 data in TF32. With `compiled` the low end of the range has the speed-up of torch.compile
    that its authors published. `by_library` a library's trainer looks at the loss of each microbatch, so that the host
    does not run ahead of the device. The weights of `streamed_blocks` are copied ahead of their use, for each
    microbatch or in so many `passes`; what is not hidden is the part `streaming`. `calibration` is from a run on the
    same device. Sources of measurements whose name contains `without` are excluded, so that their rows are
    not predicted from themselves. None if the catalog lacks the device's rates. Input, saving and evaluation are not
    included.
    """
    if calibration and calibration.rates and calibration.device == device.title:
        device, calibration = replace(device, measured=calibration.rates), None
    rates = rates_of(device)
    if rates is None:
        return None
    rates = replace(rates, autotuned=cudnn_benchmark, tf32_products=tf32)
    operators = _operators(trace, rates, work)
    timings = [
        _phase_seconds(trace, operators, microbatches, rates, call_seconds, python_seconds, cuda_graphs, by_library)
        for call_seconds, python_seconds in zip(rates.call_seconds, rates.python_seconds, strict=True)
    ]
    low, typical, high = (timing.parts for timing in timings)
    if streamed_blocks:
        sharing = max(1.0, microbatches / passes) if passes else 1.0
        _add_streaming(timings, trace, device, microbatches, rates, gpus, streamed_blocks, stream_from, sharing)
    if gpus > 1:
        usual = link or link_of(device, without)
        slowest = replace(usual, bandwidth=usual.bandwidth * usual.slowest)
        is_expected_hidden = usual.hides_gathers or sharding not in GATHERS
        for timing, used_link, is_hidden in zip(
            timings, (usual, usual, slowest), (True, is_expected_hidden, False), strict=True
        ):
            parts = timing.parts
            used = timing.final if is_hidden and not (by_library or cuda_graphs) else ()
            parts["exchange"] += _exchange(
                parts, used, trace.facts, microbatches, rates, gpus, sharding, torch_ddp, used_link, is_hidden
            )
    else:
        for parts in (low, typical, high):
            # One GPU has this phase only to add logical shards.
            parts["backward"] += parts.pop("exchange")
    if not sum(typical.values()):  # a trace without operators, such as answers to no prompts
        return Seconds(parts=typical, low=0.0, high=0.0, source=rates.source)
    if calibration and calibration.device == device.title:
        measured_spread, factor = calibration.spread, calibration.factor
        parts = {name: seconds * factor for name, seconds in typical.items()}
        value = sum(parts.values())
        limits = (value * measured_spread.low, value * measured_spread.high)
        return Seconds(parts=parts, low=limits[0], high=limits[1], source=measured_spread.source, calibration=factor)
    scored_spread = spread(device, without)
    value = sum(typical.values())
    return Seconds(
        parts=typical,
        low=value / _combined(value / sum(low.values()), 1 / scored_spread.low) / _speedup(trace, compiled),
        high=value * _combined(sum(high.values()) / value, scored_spread.high),
        source=f"{rates.source}; range: {scored_spread.source}",
        range_names=scored_spread.names,
    )


def _add_streaming(
    timings: Sequence[_Timing],
    trace: Trace,
    device: Device,
    microbatches: float,
    rates: Rates,
    gpus: int,
    streamed_blocks: int,
    stream_from: Source,
    sharing: float,
) -> None:
    """Add the seconds in which the device waits for streamed blocks, as a part of its own; so many microbatches
    are `sharing` each copy.

    A CPU copies before it computes, at the rate of its memory.
    """
    if not rates.queued:
        copied = microbatches / sharing * 2 * 2 * host_bytes(trace, streamed_blocks) / rates.bandwidth["elementwise"]
        for timing in timings:
            timing.parts["streaming"] = copied
        return
    link = host_link_of(device)
    for timing, rate in zip(timings, copy_rates(link, stream_from, gpus), strict=True):
        pace = Pace(timing.ends, timing.parts["forward"] / microbatches, timing.parts["backward"] / microbatches)
        waiting = waiting_seconds(trace, streamed_blocks, pace, rate, link.latency, sharing=sharing)
        timing.parts["streaming"] = microbatches / sharing * waiting


def _combined(*factors: float) -> float:
    """Return the factor of several independent ones: the root of the sum of their squared logarithms.

    A factor on the wrong side of one, of a spread that does not contain the prediction, counts as such.
    """
    squares = sum(math.copysign(math.log(factor) ** 2, factor - 1) for factor in factors)
    return math.exp(math.copysign(math.sqrt(abs(squares)), squares))


def _speedup(trace: Trace, compiled: bool) -> float:
    """Return how many times as fast an update may be with torch.compile; the point of an estimate has none of it.

    These are the means of 163 models in training on an A100 by PyTorch's announcement of version 2.0
    (https://pytorch.org/get-started/pytorch-2.0/): 51% faster with automatic mixed precision, 21% in fp32.
    """
    if not compiled:
        return 1.0
    return 1.21 if trace.precision == "fp32" else 1.51


_GRADIENT_BYTES = 4
"""Trained weights, and so their gradients, are fp32; autocast's copies are not exchanged."""


def _exchange(
    parts: Mapping[str, float],
    final: Sequence[tuple[float, float]],
    facts: Facts,
    microbatches: float,
    rates: Rates,
    gpus: int,
    sharding: str | None,
    torch_ddp: bool,
    link: Link,
    is_hidden: bool,
) -> float:
    """Return the seconds of an update that GPUs need for exchange, without the traced copies into buckets and back.

    If it is not hidden, the GPUs compute nothing while they exchange.
    """
    gradients = facts.parameters_trainable * _GRADIENT_BYTES
    copies = 4 * gradients / rates.bandwidth["elementwise"]
    if sharding in GATHERS:
        compute = is_hidden * (parts["forward"] + parts["backward"]) / microbatches
        exposed = sharded_seconds(facts.weight_bytes, gradients, GATHERS[sharding], gpus, link, compute)
        return microbatches * (copies + exposed)
    if torch_ddp:
        return copies + exposed_seconds(gradients, gpus, link, is_hidden * parts["backward"] / microbatches)
    return replica_seconds(gradients, gpus, link, sends_weights=sharding == "zero1", final=final)


class _Operator(NamedTuple):
    """An operator of the measured update, with the host's work for it and the device's seconds."""

    phase: Phase
    call_factor: float
    views: int
    python_calls: int
    kernel_seconds: float


class _Gradient(NamedTuple):
    """A gradient of so many bytes is allocated. It is taken to be final then, also one that several layers share."""

    bytes: int


class _Timing(NamedTuple):
    """When an update computes what, with one speed of the host."""

    parts: dict[str, float]
    """The seconds of each phase until the device has finished it: the mean over the recipe's stages."""
    final: list[tuple[float, float]]
    """For each gradient the seconds from where the last backward has computed it to its end, and its bytes."""
    ends: tuple[float, ...]
    """The seconds from the beginning of the first forward to the end of each of its operators."""


_Step: TypeAlias = _Operator | _Gradient | Repeat


def _operators(trace: Trace, rates: Rates, work: float) -> list[_Step]:
    """Return the operators of the measured update, and the gradients that its first microbatch allocates."""
    operators: list[_Step] = []
    phase: Phase | None = None
    for event in trace.events:
        if isinstance(event, Phase):
            phase = event
        elif isinstance(event, Op) and phase and phase.update == 1:
            if work != 1.0 and phase.name in ("forward", "backward"):
                event = replace(event, flops=round(event.flops * work), bytes=round(event.bytes * work))
            host = call_factor(event, rates), event.calls - 1, event.python_calls
            operators.append(_Operator(phase, *host, kernel_seconds(event, rates)))
        elif isinstance(event, Repeat) and phase and phase.update == 1:
            operators.append(event)
        elif isinstance(event, Alloc) and phase and (phase.name, phase.update, phase.microbatch) == ("backward", 1, 0):
            storage = trace.storages[event.storage]
            if storage.part == "gradients":
                operators.append(_Gradient(storage.bytes))
    return operators


def _phase_seconds(
    trace: Trace,
    operators: Sequence[_Step],
    microbatches: float,
    rates: Rates,
    call_seconds: float,
    python_seconds: float,
    cuda_graphs: bool,
    waits: bool,
) -> _Timing:
    """Return when the operators of an update run.

    The host starts each update when the device is idle, since it has read the loss, and runs ahead from there; if it
    `waits`, it also starts each microbatch so.
    """
    times: dict[tuple[str, int], float] = defaultdict(float)
    host_time = device_time = step_start = 0.0
    key = ("", 0)
    allocated: list[int] = []
    computed: list[tuple[float, int]] = []
    ends: list[float] = []
    for operator in operators:
        if isinstance(operator, _Gradient):
            allocated.append(operator.bytes)
            continue
        if isinstance(operator, Repeat):
            times[key] += (operator.times - 1) * (device_time - step_start)
            # The lead that the host has gained in one step is used up in the first of many others.
            step_start = host_time = device_time
            continue
        phase, factor, views, python_calls, kernels = operator
        start = device_time
        if (phase.name, phase.microbatch) != key:
            key, step_start = (phase.name, phase.microbatch), start
            if waits and phase.name != "backward":
                host_time = max(host_time, device_time)
        if not cuda_graphs or phase.name == "optimizer":
            share = factor * rates.call_shares.get(phase.name, 1.0)
            host_time += share * call_seconds + views * rates.view_seconds + python_calls * python_seconds
        device_time = max(device_time, host_time) + kernels
        host_time = host_time if rates.queued else device_time
        times[key] += device_time - start
        if key == ("forward", 0):
            ends.append(times[key])
        if allocated:  # the gradient that this operator computes
            computed += [(times["backward", 0], size) for size in allocated]
            allocated.clear()
    last = trace.microbatches - 1
    parts = {name: times[name, 0] + (microbatches - 1) * times[name, last] for name in ("forward", "backward")}
    for name in ("exchange", "optimizer"):
        parts[name] = times[name, 0]
    if trace.counts_steps and ("generation", 0) in times:
        parts = {"generation": times["generation", 0], **parts}
    first, stages = times["backward", 0] or 1.0, trace.stages
    final = [((1 - seconds / first) * times["backward", last] / stages, size / stages) for seconds, size in computed]
    return _Timing({name: seconds / stages for name, seconds in parts.items()}, final, tuple(ends))
