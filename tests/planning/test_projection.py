"""Projections of a trace to another precision, microbatch or one GPU."""

from dataclasses import replace

from shoestring.planning.projection import in_precision, interpolated
from shoestring.planning.trace.record import Free, Op
from tests.planning.estimate.example_traces import op, update


def work(trace):
    return [(event.flops, event.bytes) for event in trace.events if isinstance(event, Op)]


def trace_of_size(size, *, shape=(), forward="aten::mm"):
    forward = replace(op(flops=100 * size, size=10 * size, name=forward), shape=shape)
    trace = update(forward=forward, backward=op(flops=200 * size, size=20 * size), optimizer=op(flops=7, size=70))
    return replace(trace, micro_batch=size)


def test_projected_precision_has_no_casts():
    trace = trace_of_size(2)
    trace = replace(trace, events=(*trace.events, op(size=5, name="aten::_to_copy")))
    projected = in_precision(trace, "fp16")
    assert projected.precision == "fp16"
    assert {event.precision for event in projected.events if isinstance(event, Op)} == {"fp16"}
    assert work(projected) == work(trace_of_size(2))


def test_work_and_shapes_are_interpolated_linearly():
    low, high = trace_of_size(2, shape=(1, 8, 16)), trace_of_size(8, shape=(1, 32, 16))
    middle = interpolated(low, high, 5)
    assert middle == trace_of_size(5, shape=(1, 20, 16))
    assert interpolated(low, high, 2) == low


def test_traces_of_different_operators_are_not_interpolated():
    low, high = trace_of_size(2), trace_of_size(8)
    assert interpolated(low, trace_of_size(8, forward="aten::bmm"), 5) is None
    assert interpolated(low, trace_of_size(8, shape=(1, 2, 3)), 5) is None
    assert interpolated(low, replace(high, events=high.events[:-1]), 5) is None
    freed = tuple(Free(0) if isinstance(event, Op) else event for event in high.events)
    assert interpolated(low, replace(high, events=freed), 5) is None
