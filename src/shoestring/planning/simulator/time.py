"""The time of recorded updates on a GPU, by the estimator of plans (`planning/estimate/time.py`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from shoestring.hardware.catalog import Device
from shoestring.planning.estimate.exchange import Link
from shoestring.planning.estimate.measured_rates import rates_of
from shoestring.planning.estimate.span import NOTHING, Span
from shoestring.planning.estimate.time import Seconds, update_seconds
from shoestring.planning.simulator.recorded import EVALUATION, GENERATION, TRAINING, RecordedOperators, Unit
from shoestring.planning.simulator.traces import Record, placed_events, replica_devices, trace, update_events
from shoestring.planning.trace.record import Event, Op, Phase

_MOST_UNITS = 64
"""So many units of a phase are estimated at most, evenly chosen by the order in which they ran first."""
_MOST_CALLS = 400_000
"""So many calls at most, of all of them together, unless it is one unit: an estimate takes 10 us for each."""

_REDUCTIONS = ("c10d::allreduce_", "c10d::_reduce_scatter_base_", "c10d::reduce_scatter_")
_SCATTERS = ("c10d::_reduce_scatter_base_", "c10d::reduce_scatter_")
_GATHERS = ("c10d::_allgather_base_", "c10d::allgather_")


@dataclass(frozen=True, kw_only=True)
class RecordedTime:
    """The time of what was recorded, on one kind of GPU."""

    update: Seconds | None
    """Of the median update, by its seconds; None if no update was completed."""
    microbatches: int
    """The microbatches of that update."""
    mean_update: Span
    """The mean of all updates, also of those that were only counted."""
    updates: int
    """The updates that were completed."""
    different_updates: int
    """How many of those that were looked at differ from each other."""
    evaluation: Span
    """All of evaluation."""
    generation: Span
    """All of generation."""
    notes: tuple[str, ...] = ()
    """What the estimate leaves out or assumes for this record."""


def recorded_time(
    records: Sequence[RecordedOperators],
    device: Device,
    *,
    gpus: int | None = None,
    link: Link | None = None,
    cudnn_benchmark: bool = False,
) -> RecordedTime | None:
    """Estimate what was recorded in a rehearsal; of several processes, that of the slowest one.

    `gpus` is the number of processes that exchange gradients, by default of all that have trained. By default they
    exchange over the link of the device. None if the rates of the device are unknown.
    """
    options = {"link": link, "cudnn_benchmark": cudnn_benchmark}
    processes = gpus or sum(bool(record.units_of(TRAINING)) for record in records)
    times = [_process_time(Record(record), device, processes, options) for record in records if record.units]
    known = [time for time in times if time is not None]
    if len(known) < len(times):
        return None
    if not known:
        nothing = RecordedTime(
            update=None,
            microbatches=0,
            mean_update=NOTHING,
            updates=0,
            different_updates=0,
            evaluation=NOTHING,
            generation=NOTHING,
        )
        return None if rates_of(device) is None else nothing
    return max(known, key=lambda time: (time.mean_update.seconds, time.evaluation.seconds + time.generation.seconds))


def _process_time(record: Record, device: Device, gpus: int, options: Mapping[str, Any]) -> RecordedTime | None:
    recorded = record.recorded
    notes: list[str] = []
    updates = _chosen(record, TRAINING)
    estimates = [_update_seconds(record, unit, device, gpus, options, notes) for unit in updates]
    known = [estimate for estimate in estimates if estimate is not None]
    if len(known) < len(estimates):
        return None
    weighted = list(zip(known, updates, strict=True))
    phases = {}
    for phase in (EVALUATION, GENERATION):
        total = _phase_total(record, phase, device, options)
        if total is None:
            return None
        phases[phase] = total
    median, unit = _median(weighted) if weighted else (None, None)
    totals = recorded.totals.get(TRAINING)
    if recorded.is_full:
        notes.append("the record reached its limit: what came later is taken to be as long as what came before")
    return RecordedTime(
        update=median,
        microbatches=record.microbatches(unit) if unit else 0,
        mean_update=_mean([(_span(estimate), update.weight) for estimate, update in weighted]),
        updates=totals.units if totals else 0,
        different_updates=len(recorded.units_of(TRAINING)),
        evaluation=phases[EVALUATION],
        generation=phases[GENERATION],
        notes=tuple(dict.fromkeys(notes)),
    )


def _chosen(record: Record, phase: int) -> list[Unit]:
    """Return the stored units of a phase that are estimated: all, or some with the weights of the others."""
    units = record.recorded.units_of(phase)
    calls = sum(len(record.recorded.segments[segment]) for unit in units for segment in dict.fromkeys(unit.segments))
    count = min(len(units), _MOST_UNITS, max(1, len(units) * _MOST_CALLS // max(1, calls)))
    groups = [units[index * len(units) // count : (index + 1) * len(units) // count] for index in range(count)]
    # The one that ran most often stands for its neighbours: the usual update, not one beside it that ran once.
    return [
        replace(max(group, key=lambda unit: unit.weight), weight=sum(unit.weight for unit in group)) for group in groups
    ]


def _median(weighted: Sequence[tuple[Seconds, Unit]]) -> tuple[Seconds, Unit]:
    ordered = sorted(weighted, key=lambda pair: pair[0].value)
    half = sum(unit.weight for _, unit in ordered) / 2
    passed = 0
    for seconds, unit in ordered:
        passed += unit.weight
        if passed >= half:
            return seconds, unit
    return ordered[-1]


def _mean(weighted: Sequence[tuple[Span, int]]) -> Span:
    total = sum(weight for _, weight in weighted)
    return sum((span * (weight / total) for span, weight in weighted), NOTHING)


def _phase_total(record: Record, phase: int, device: Device, options: Mapping[str, Any]) -> Span | None:
    """Return the time of a phase other than training, scaled from the calls that were looked at to all of them."""
    total, calls = NOTHING, 0
    for unit in _chosen(record, phase):
        events: list[Event] = [Phase("forward", 1, 0), *map(record.operator, record.calls(unit))]
        seconds = update_seconds(trace(events), device, 1, **options)
        if seconds is None:
            return None
        total += _span(seconds) * unit.weight
        calls += unit.weight * sum(len(record.recorded.segments[segment]) for segment in unit.segments)
    totals = record.recorded.totals.get(phase)
    return total * (totals.calls / calls) if calls and totals else total


def _span(seconds: Seconds) -> Span:
    return Span(seconds.value, seconds.low, seconds.high)


class _Exchange(NamedTuple):
    """What the GPUs of an update exchange."""

    gradients: int
    """Bytes of gradients, each time."""
    times: int = 1
    """How often they are exchanged where the estimate has it once: after each microbatch, without `no_sync`."""
    weights: int = 0
    """Bytes of weights that are gathered for a pass of a microbatch."""
    is_sharded: bool = False
    note: str = ""


def _exchange(record: Record, unit: Unit) -> _Exchange | None:
    """Return the exchange that was recorded."""
    microbatches = max(1, record.microbatches(unit))
    gradients = record.collective_bytes(unit, _REDUCTIONS)
    if record.collective_bytes(unit, _SCATTERS):
        gathered_bytes = record.collective_bytes(unit, _GATHERS)
        note = "FSDP is taken to gather all weights twice in each microbatch"
        return _Exchange(gradients // microbatches, 1, gathered_bytes // (2 * microbatches), is_sharded=True, note=note)
    reducing = record.segments_with(unit, _REDUCTIONS)
    return _Exchange(gradients // reducing, reducing) if reducing else None


def _update_seconds(
    record: Record, unit: Unit, device: Device, gpus: int, options: Mapping[str, Any], notes: list[str]
) -> Seconds | None:
    replicas = replica_devices(record, unit)
    if len(replicas) > 1:
        return _seconds_of_replicas(record, unit, device, replicas, options, notes)
    exchange = _exchange(record, unit) if gpus > 1 else None
    if exchange is None:
        return update_seconds(trace(update_events(record, unit, 1)), device, 1, **options)
    if exchange.note:
        notes.append(exchange.note)
    microbatches = max(1, record.microbatches(unit))
    update = trace(
        update_events(record, unit, microbatches),
        microbatches=min(2, microbatches),
        gradients=exchange.gradients,
        weights=exchange.weights,
    )
    sharding: dict[str, Any] = {"sharding": "zero3"} if exchange.is_sharded else {"torch_ddp": True}
    seconds = update_seconds(update, device, microbatches, gpus=gpus, **sharding, **options)
    return None if seconds is None else _with_exchanges(seconds, exchange.times)


def _with_exchanges(seconds: Seconds, times: int) -> Seconds:
    """Return the seconds of an update that exchanges gradients so many times, not once; its range grows as much."""
    parts = {**seconds.parts, "exchange": seconds.parts["exchange"] * times}
    growth = sum(parts.values()) / seconds.value if seconds.value else 1.0
    return replace(seconds, parts=parts, low=seconds.low * growth, high=seconds.high * growth)


def _seconds_of_replicas(
    record: Record, unit: Unit, device: Device, used: Sequence[int], options: Mapping[str, Any], notes: list[str]
) -> Seconds | None:
    """Return the time of the slowest of several devices that one process uses at the same time.

    One host queues the work of all. In each microbatch it sends all weights to the others, and adds their gradients.
    """
    notes.append(f"one process uses {len(used)} GPUs, as DataParallel does: its host queues the work of all of them")
    estimates = []
    for used_device in used:
        events = (
            event if place == used_device or not isinstance(event, Op) else replace(event, flops=0, bytes=0, launches=0)
            for event, place in placed_events(record, unit)
        )
        update = trace(events, gradients=record.trained_bytes(unit))
        # The weights are sent as in zero1.
        estimates.append(update_seconds(update, device, 1, gpus=len(used), sharding="zero1", **options))
    known = [estimate for estimate in estimates if estimate is not None]
    if not known:
        return None
    return _with_exchanges(max(known, key=lambda estimate: estimate.value), max(1, record.microbatches(unit)))
