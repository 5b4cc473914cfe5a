"""What a trace would be in another precision or with another microbatch."""

from dataclasses import replace

from shoestring.plan.projection import in_precision, interpolated, scaled
from shoestring.trace.record import Free, Op
from tests.estimate.handmade_traces import op, update


def work(trace):
    return [(event.flops, event.bytes) for event in trace.events if isinstance(event, Op)]


def of_size(size, *, shape=(), forward="aten::mm"):
    forward = replace(op(flops=100 * size, size=10 * size, name=forward), shape=shape)
    trace = update(forward=forward, backward=op(flops=200 * size, size=20 * size), optimizer=op(flops=7, size=70))
    return replace(trace, micro_batch=size)


def test_another_precision_computes_in_it_and_changes_no_types():
    trace = of_size(2)
    trace = replace(trace, events=(*trace.events, op(size=5, name="aten::_to_copy")))
    other = in_precision(trace, "fp16")
    assert other.precision == "fp16"
    assert {event.precision for event in other.events if isinstance(event, Op)} == {"fp16"}
    assert work(other) == work(of_size(2))


def test_the_work_of_both_passes_grows_with_the_microbatch_and_the_optimizer_stays():
    assert scaled(of_size(2), 5) == of_size(5)


def test_between_two_traces_work_and_shapes_are_on_a_line():
    low, high = of_size(2, shape=(1, 8, 16)), of_size(8, shape=(1, 32, 16))
    middle = interpolated(low, high, 5)
    assert middle == of_size(5, shape=(1, 20, 16))
    assert interpolated(low, high, 2) == low


def test_there_is_nothing_between_traces_of_other_operators():
    low, high = of_size(2), of_size(8)
    assert interpolated(low, of_size(8, forward="aten::bmm"), 5) is None
    assert interpolated(low, of_size(8, shape=(1, 2, 3)), 5) is None
    assert interpolated(low, replace(high, events=high.events[:-1]), 5) is None
    freed = tuple(Free(0) if isinstance(event, Op) else event for event in high.events)
    assert interpolated(low, replace(high, events=freed), 5) is None
