"""What a trace would be in another precision or with another microbatch, without following that: fast, nearly right."""

from dataclasses import replace

from shoestring.settings import Precision
from shoestring.trace.record import Event, Op, Phase, Trace


def in_precision(trace: Trace, precision: Precision) -> Trace:
    """The trace with its arithmetic in `precision`: as many bytes, and none for changing types."""
    events = (
        replace(event, precision=precision) if isinstance(event, Op) else event
        for event in trace.events
        if not (isinstance(event, Op) and event.name.startswith("aten::_to_copy"))
    )
    return replace(trace, precision=precision, events=tuple(events))


def scaled(trace: Trace, micro_batch: int) -> Trace:
    """The trace with another microbatch, and all work of forward and backward in proportion."""
    ratio = micro_batch / trace.micro_batch
    events: list[Event] = []
    in_passes = False
    for event in trace.events:
        if isinstance(event, Phase):
            in_passes = event.name in ("forward", "backward")
        elif in_passes and isinstance(event, Op):
            event = replace(event, flops=round(event.flops * ratio), bytes=round(event.bytes * ratio))
        events.append(event)
    return replace(trace, micro_batch=micro_batch, events=tuple(events))


def interpolated(first: Trace, second: Trace, micro_batch: int) -> Trace | None:
    """The trace with another microbatch, its work on a line through two; None where these do other operators."""
    if len(first.events) != len(second.events):
        return None
    share = (micro_batch - first.micro_batch) / (second.micro_batch - first.micro_batch)
    events: list[Event] = []
    for event, other in zip(first.events, second.events, strict=True):
        if isinstance(event, Op) and isinstance(other, Op):
            if (event.name, len(event.shape)) != (other.name, len(other.shape)):
                return None
            event = _operator_between(event, other, share)
        elif type(event) is not type(other):
            return None
        events.append(event)
    return replace(first, micro_batch=micro_batch, events=tuple(events))


def _operator_between(first: Op, second: Op, share: float) -> Op:
    """The operator so far on the way from the first to the second; 0 is the first, 1 the second."""

    def between(start: int, end: int) -> int:
        return round(start + share * (end - start))

    return replace(
        first,
        flops=between(first.flops, second.flops),
        bytes=between(first.bytes, second.bytes),
        shape=tuple(between(start, end) for start, end in zip(first.shape, second.shape, strict=True)),
    )
