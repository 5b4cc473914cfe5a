"""Traces of recorded updates, as the estimator of plans takes them.

What a process called becomes the events of an update. Of the host's work the record has operators and views. Calls of
Python functions are not recorded; here each operator of a layer stands for the number that models call on average.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from shoestring.planning.simulator.recorded import (
    BACKWARD,
    FORWARD,
    OPTIMIZER,
    RECOMPUTATION,
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

_COLLECTIVE = "c10d::"
_GRADIENT_BYTES = 4
"""The estimate takes gradients of so many bytes."""


class Record:
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

    def segments_with(self, unit: Unit, names: Collection[str]) -> int:
        """Return the number of a unit's segments that have such calls."""
        matches = {
            segment: any(self.name(call) in names for call in self.segment_calls(segment))
            for segment in {*unit.segments}
        }
        return sum(matches[segment] for segment in unit.segments)

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


def trace(events: Iterable[Event], *, microbatches: int = 1, gradients: int = 0, weights: int = 0) -> Trace:
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


def update_events(record: Record, unit: Unit, microbatches: int) -> Iterator[Event]:
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
        for event, _ in _segment_events(record, segment, int(is_other), position - times > last):
            if isinstance(event, _End):
                if scale != 1:
                    yield Repeat(scale)
            else:
                yield event


def placed_events(record: Record, unit: Unit) -> Iterator[tuple[Event, int]]:
    """Yield the events of an update, each with its device."""
    last = record.last_backward(unit)
    for position, segment in enumerate(unit.segments):
        for event, place in _segment_events(record, segment, 0, position > last):
            if not isinstance(event, _End):
                yield event, place


class _End:
    """The end of a phase in a segment."""


def _segment_events(
    record: Record, segment: int, index: int, is_after_backward: bool
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


def replica_devices(record: Record, unit: Unit) -> list[int]:
    """Return the devices of replicas of the model that run at the same time, in threads, as with `DataParallel`."""
    devices = {call.device for call in record.calls(unit) if call.is_other_thread and call.step == FORWARD}
    return sorted(devices) if len(devices) > 1 else []
