"""The time of recorded updates on a GPU, by the estimator of plans (`planning/estimate/time.py`).

What a process called becomes a trace of an update. Of the host's work the record has operators and views. Calls of
Python functions are not recorded; here each operator of a layer stands for the number that models call on average.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, NamedTuple

from shoestring.hardware.catalog import Device
from shoestring.planning.estimate.exchange import Link
from shoestring.planning.estimate.measured_rates import rates_of
from shoestring.planning.estimate.span import NOTHING, Span
from shoestring.planning.estimate.time import Seconds, update_seconds
from shoestring.planning.simulator.recorded import (
    BACKWARD,
    EVALUATION,
    GENERATION,
    OPTIMIZER,
    RECOMPUTATION,
    TRAINING,
    Call,
    RecordedList,
    RecordedOperators,
    RecordedTensor,
    Unit,
)
from shoestring.planning.trace.record import Event, Facts, Op, Phase, PhaseName, Repeat, Trace

PYTHON_CALLS = 17
"""Python functions that the host calls for each operator of a layer in forward: 9 for each call of a module
(`planning/trace/python_calls.py`) and 1.9 modules for each product, convolution, norm and lookup of embeddings, since
many modules have others inside. Counted in traces of GPT-2, Llama, BERT, ViT (transformers), a convolutional net and an
LSTM: 1.7 to 2.2."""

_LAYERS = ("mm", "convolution", "norm", "embedding", "index_select", "recurrent")
"""Parts of the names of operators that count as a layer's. `bmm` is none: it is a part of attention."""

CHECKPOINTED_PYTHON_CALLS = 63
"""Those for each operator of a layer in forward if activation checkpointing recomputes it later, in addition: the hooks
that pack its tensors. Counted in the same traces of transformers, with checkpointing of all blocks: 53 to 78."""

RECOMPUTED_PYTHON_CALLS = 91
"""Those for each operator of a layer that is recomputed, in the same traces: 78 to 113."""

_MOST_UNITS = 64
"""So many units of a phase are estimated at most, evenly chosen by the order in which they ran first."""
_MOST_CALLS = 400_000
"""So many calls at most, of all of them together, unless it is one unit: an estimate takes 10 us for each."""

_COLLECTIVE = "c10d::"
_REDUCTIONS = ("c10d::allreduce_", "c10d::_reduce_scatter_base_", "c10d::reduce_scatter_")
_SCATTERS = ("c10d::_reduce_scatter_base_", "c10d::reduce_scatter_")
_GATHERS = ("c10d::_allgather_base_", "c10d::allgather_")
_GRADIENT_BYTES = 4
"""The estimate takes gradients of so many bytes."""


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
    gpus: int = 1,
    link: Link | None = None,
    cudnn_benchmark: bool = False,
) -> RecordedTime | None:
    """Estimate what was recorded in a rehearsal; of several processes, that of the slowest one.

    `gpus` is the number that train one model together; by default their exchange is that over the link between two T4s.
    None if the rates of the device are unknown.
    """
    options = {"link": link, "cudnn_benchmark": cudnn_benchmark}
    times = [_process_time(_Record(record), device, gpus, options) for record in records if record.units]
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


class _Record:
    """A record with its operators converted to those of a trace, each when it is needed."""

    def __init__(self, recorded: RecordedOperators) -> None:
        self.recorded = recorded
        self._operators: dict[int, Op] = {}
        self._steps = [{recorded.calls[call].step for call in set(segment)} for segment in recorded.segments]
        # A model recomputes all of its blocks or none, except for its first and last layers.
        self._recomputes = any({BACKWARD, RECOMPUTATION} <= steps for steps in self._steps)

    def operator(self, call: Call) -> Op:
        """Return the operator of a call, with the host's work before it."""
        if call.signature not in self._operators:
            from shoestring.planning.simulator import conversion

            self._operators[call.signature] = conversion.operator(self.recorded.signatures[call.signature])
        op = self._operators[call.signature]
        return replace(op, calls=call.views + 1, python_calls=self._python_calls(op, call))

    def _python_calls(self, op: Op, call: Call) -> int:
        if not _is_of_layer(op):
            return 0
        if call.step == RECOMPUTATION:
            return RECOMPUTED_PYTHON_CALLS
        if call.step in (BACKWARD, OPTIMIZER):
            return 0
        return PYTHON_CALLS + self._recomputes * CHECKPOINTED_PYTHON_CALLS

    def name(self, call: Call) -> str:
        return self.recorded.signatures[call.signature].operator.name

    def calls(self, unit: Unit) -> Iterator[Call]:
        for segment in unit.segments:
            yield from self.segment_calls(segment)

    def collective_bytes(self, unit: Unit, names: Collection[str]) -> int:
        """Return the bytes of the tensors that such collectives take in a unit: of input and output the larger one."""
        return sum(
            times * self._collective_bytes(call, names)
            for segment, times in Counter(unit.segments).items()
            for call in self.segment_calls(segment)
        )

    def _collective_bytes(self, call: Call, names: Collection[str]) -> int:
        if self.name(call) not in names:
            return 0
        arguments = self.recorded.signatures[call.signature].arguments
        return max((value.bytes for value in arguments if isinstance(value, RecordedTensor | RecordedList)), default=0)

    def reduces(self, segment: int) -> bool:
        """Return whether gradients are exchanged in a segment."""
        return any(self.name(call) in _REDUCTIONS for call in self.segment_calls(segment))

    def segment_calls(self, segment: int) -> Iterator[Call]:
        """Return the calls of a segment.

        A backward pass that builds a graph (`create_graph`) looks like a recomputation of blocks, but is all there is.
        """
        calls = self.recorded.calls_of(segment)
        if {BACKWARD, RECOMPUTATION} & self._steps[segment] != {RECOMPUTATION}:
            return calls
        return (replace(call, step=BACKWARD) if call.step == RECOMPUTATION else call for call in calls)

    def has_backward(self, segment: int) -> bool:
        """Return whether a segment has a backward pass, so that it is a microbatch."""
        return bool({BACKWARD, RECOMPUTATION} & self._steps[segment])

    def microbatches(self, unit: Unit) -> int:
        """Return the number of microbatches of an update."""
        return sum(map(self.has_backward, unit.segments))

    def last_backward(self, unit: Unit) -> int:
        """Return the position of an update's last microbatch among its segments; without one that of the last."""
        positions = [position for position, segment in enumerate(unit.segments) if self.has_backward(segment)]
        return positions[-1] if positions else len(unit.segments) - 1

    def trained_bytes(self, unit: Unit) -> int:
        """Return the bytes of the weights that the optimizer updates: the largest list that it writes."""
        sizes = [0]
        for call in self.segment_calls(unit.segments[-1]):
            signature = self.recorded.signatures[call.signature]
            first = signature.arguments[0] if signature.arguments else None
            if 0 in signature.operator.written and isinstance(first, RecordedList):
                sizes.append(first.bytes)
        return max(sizes)


def _is_of_layer(op: Op) -> bool:
    return "bmm" not in op.name and any(part in op.name for part in _LAYERS)


def _process_time(record: _Record, device: Device, gpus: int, options: Mapping[str, Any]) -> RecordedTime | None:
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
        mean_update=_mean([(Span(each.value, each.low, each.high), unit.weight) for each, unit in weighted]),
        updates=totals.units if totals else 0,
        different_updates=len(recorded.units_of(TRAINING)),
        evaluation=phases[EVALUATION],
        generation=phases[GENERATION],
        notes=tuple(dict.fromkeys(notes)),
    )


def _chosen(record: _Record, phase: int) -> list[Unit]:
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


def _phase_total(record: _Record, phase: int, device: Device, options: Mapping[str, Any]) -> Span | None:
    """Return the time of a phase other than training, scaled from the calls that were looked at to all of them."""
    total, calls = NOTHING, 0
    for unit in _chosen(record, phase):
        trace = _trace([Phase("forward", 1, 0), *map(record.operator, record.calls(unit))])
        seconds = update_seconds(trace, device, 1, **options)
        if seconds is None:
            return None
        total += Span(seconds.value, seconds.low, seconds.high) * unit.weight
        calls += unit.weight * sum(len(record.recorded.segments[segment]) for segment in unit.segments)
    counted = record.recorded.totals.get(phase)
    return total * (counted.calls / calls) if calls and counted else total


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


def _exchange(record: _Record, unit: Unit) -> _Exchange:
    """Return the exchange that was recorded, or that of all trained weights if none was."""
    microbatches = max(1, record.microbatches(unit))
    gradients = record.collective_bytes(unit, _REDUCTIONS)
    if record.collective_bytes(unit, _SCATTERS):
        gathered = record.collective_bytes(unit, _GATHERS)
        note = "FSDP is taken to gather all weights twice in each microbatch"
        return _Exchange(gradients // microbatches, 1, gathered // (2 * microbatches), is_sharded=True, note=note)
    if gradients:
        reducing = sum(record.reduces(segment) for segment in unit.segments)
        return _Exchange(gradients // reducing, reducing)
    note = "no exchange was recorded: it is that of all weights that the optimizer updates"
    return _Exchange(record.trained_bytes(unit), note=note)


def _update_seconds(
    record: _Record, unit: Unit, device: Device, gpus: int, options: Mapping[str, Any], notes: list[str]
) -> Seconds | None:
    replicas = _replica_devices(record, unit)
    if len(replicas) > 1:
        return _seconds_of_replicas(record, unit, device, replicas, options, notes)
    if gpus < 2:
        return update_seconds(_trace(_update_events(record, unit, 1)), device, 1, **options)
    microbatches = max(1, record.microbatches(unit))
    exchange = _exchange(record, unit)
    if exchange.note:
        notes.append(exchange.note)
    trace = _trace(
        _update_events(record, unit, microbatches),
        microbatches=min(2, microbatches),
        gradients=exchange.gradients,
        weights=exchange.weights,
    )
    sharding: dict[str, Any] = {"sharding": "zero3"} if exchange.is_sharded else {"torch_ddp": True}
    seconds = update_seconds(trace, device, microbatches, gpus=gpus, **sharding, **options)
    return None if seconds is None else _with_exchanges(seconds, exchange.times)


def _with_exchanges(seconds: Seconds, times: int) -> Seconds:
    """Return the seconds of an update that exchanges gradients so many times, not once; its range grows as much."""
    parts = {**seconds.parts, "exchange": seconds.parts["exchange"] * times}
    growth = sum(parts.values()) / seconds.value if seconds.value else 1.0
    return replace(seconds, parts=parts, low=seconds.low * growth, high=seconds.high * growth)


def _replica_devices(record: _Record, unit: Unit) -> list[int]:
    """Return the devices of replicas of the model that run at the same time, in threads, as with `DataParallel`."""
    devices = {call.device for call in record.calls(unit) if call.is_other_thread and call.step != BACKWARD}
    return sorted(devices) if len(devices) > 1 else []


def _seconds_of_replicas(
    record: _Record, unit: Unit, device: Device, used: Sequence[int], options: Mapping[str, Any], notes: list[str]
) -> Seconds | None:
    """Return the time of the slowest of several devices that one process uses at the same time.

    One host queues the work of all. In each microbatch it sends all weights to the others, and adds their gradients.
    """
    notes.append(f"one process uses {len(used)} GPUs, as DataParallel does: its host queues the work of all of them")
    estimates = []
    for one in used:
        events = (
            event if place == one or not isinstance(event, Op) else replace(event, flops=0, bytes=0, launches=0)
            for event, place in _placed_events(record, unit)
        )
        trace = _trace(events, gradients=record.trained_bytes(unit))
        # The weights are sent as in zero1.
        estimates.append(update_seconds(trace, device, 1, gpus=len(used), sharding="zero1", **options))
    known = [estimate for estimate in estimates if estimate is not None]
    if not known:
        return None
    return _with_exchanges(max(known, key=lambda estimate: estimate.value), max(1, record.microbatches(unit)))


def _trace(events: Iterable[Event], *, microbatches: int = 1, gradients: int = 0, weights: int = 0) -> Trace:
    """Return a trace of one update with these events; only what an estimate of time reads is known."""
    facts = Facts(
        parameters_total=0,
        parameters_trainable=gradients // _GRADIENT_BYTES,
        weight_bytes=weights,
        batch_norm=False,
        samples=None,
        process_bytes=0,
    )
    return Trace(
        micro_batch=1,
        microbatches=microbatches,
        precision="fp32",
        facts=facts,
        storages=(),
        events=tuple(events),
    )


def _stretches(segments: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield segments with the number of times that their time counts: one of many equal ones, then the last of them.

    The last one is not repeated, so that the lead that the host has gained holds for what follows.
    """
    for segment, group in groupby(segments):
        count = len(list(group))
        yield from [(segment, count - 1), (segment, 1)] if count > 2 else [(segment, 1)] * count


def _update_events(record: _Record, unit: Unit, microbatches: int) -> Iterator[Event]:
    """Yield the events of an update.

    With several `microbatches` the last one is number 0, and all others together have the time that the estimate takes
    `microbatches - 1` times: the exchange overlaps with the backward pass of one microbatch only.
    """
    last = record.last_backward(unit)
    position = 0
    for segment, times in _stretches(unit.segments):
        position += times
        is_other = microbatches > 1 and position <= last
        scale = times / (microbatches - 1) if is_other else times
        for event, _ in _segment_events(record, segment, int(is_other), position > last + 1):
            if isinstance(event, _End):
                if scale != 1:
                    yield Repeat(scale)
            else:
                yield event


def _placed_events(record: _Record, unit: Unit) -> Iterator[tuple[Event, int]]:
    """Yield the events of an update, each with its device."""
    last = record.last_backward(unit)
    for position, segment in enumerate(unit.segments):
        for event, place in _segment_events(record, segment, 0, position > last):
            if not isinstance(event, _End):
                yield event, place


class _End:
    """The end of a phase in a segment."""


def _segment_events(
    record: _Record, segment: int, index: int, is_after_backward: bool
) -> Iterator[tuple[Event | _End, int]]:
    """Yield the events of a segment, each with its device; phases have this index, but the optimizer's has 0."""
    name: PhaseName | None = None
    for call in record.segment_calls(segment):
        if record.name(call).startswith(_COLLECTIVE):
            continue
        following = _phase_of(call, is_after_backward)
        if following != name:
            if name is not None:
                yield _End(), call.device
            name = following
            yield Phase(name, 1, 0 if name == "optimizer" else index), call.device
        yield record.operator(call), call.device
    if name is not None:
        yield _End(), 0


def _phase_of(call: Call, is_after_backward: bool) -> PhaseName:
    """Return the phase of a call. As in a trace, all that follows the last backward pass is the optimizer's."""
    if call.step in (BACKWARD, RECOMPUTATION):
        return "backward"
    return "optimizer" if is_after_backward else "forward"
