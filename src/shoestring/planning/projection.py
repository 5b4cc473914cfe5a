"""Projections of a trace to another precision, microbatch or one GPU without tracing again: fast and approximate."""

from dataclasses import replace

from shoestring.base.settings import Precision
from shoestring.planning.trace.record import Alloc, Event, Free, Op, Phase, Trace


def in_precision(trace: Trace, precision: Precision) -> Trace:
    """Return the trace with its arithmetic in `precision`: the same bytes, without casts between types."""
    events = (
        replace(event, precision=precision) if isinstance(event, Op) else event
        for event in trace.events
        if not (isinstance(event, Op) and event.name.startswith("aten::_to_copy"))
    )
    return replace(trace, precision=precision, events=tuple(events))


def on_one_gpu(trace: Trace) -> Trace:
    """Return the trace of a replica as one GPU alone would run it: without the exchange and its buckets."""
    events: list[Event] = []
    in_exchange = False
    for event in trace.events:
        if isinstance(event, Phase):
            in_exchange = event.name == "exchange"
        is_bucket = isinstance(event, Alloc | Free) and trace.storages[event.storage].part == "gradient buckets"
        if not in_exchange and not is_bucket:
            events.append(event)
    return replace(trace, events=tuple(events))


def interpolated(first: Trace, second: Trace, micro_batch: int) -> Trace | None:
    """Return the trace with another microbatch, interpolating linearly; None if the traces have different operators."""
    if len(first.events) != len(second.events):
        return None
    share = (micro_batch - first.micro_batch) / (second.micro_batch - first.micro_batch)
    events: list[Event] = []
    for event, second_event in zip(first.events, second.events, strict=True):
        if isinstance(event, Op) and isinstance(second_event, Op):
            if (event.name, len(event.shape)) != (second_event.name, len(second_event.shape)):
                return None
            event = _interpolate_operator(event, second_event, share)
        elif type(event) is not type(second_event):
            return None
        events.append(event)
    return replace(first, micro_batch=micro_batch, events=tuple(events))


def _interpolate_operator(first: Op, second: Op, share: float) -> Op:
    """Interpolate between two operators: a `share` of 0 is the first, 1 the second."""

    def interpolate(start: int, end: int) -> int:
        return round(start + share * (end - start))

    return replace(
        first,
        flops=interpolate(first.flops, second.flops),
        bytes=interpolate(first.bytes, second.bytes),
        shape=tuple(interpolate(start, end) for start, end in zip(first.shape, second.shape, strict=True)),
    )
