"""What a trace asks of the allocator where the real engine differs from what is recorded, and after it ends."""

from shoestring.estimate.requests import WORKSPACES, added_in_place, requests, settled, steady
from shoestring.hardware.catalog import DEVICES
from shoestring.trace.record import Alloc, Event, Free, Phase, Trace
from shoestring.units import MIB
from tests.estimate.handmade_traces import op, trace

T4 = DEVICES["t4"]
ADD = op(name="aten::add.Tensor")


def storage_events(found: Trace) -> list[Event]:
    return [event for event in found.events if isinstance(event, Alloc | Free)]


def sum_of_two(phase: Phase, *, third: int = MIB) -> Trace:
    storages = [(MIB, "temporaries"), (MIB, "temporaries"), (third, "temporaries")]
    return trace(storages, [phase, Alloc(0), Alloc(1), Alloc(2), ADD, Free(0), Free(1), Free(2)])


def test_gradients_that_meet_take_no_third_tensor() -> None:
    found = storage_events(added_in_place(sum_of_two(Phase("backward", 0, 0))))
    assert found == [Alloc(0), Alloc(1), Free(1), Free(0)]


def test_a_sum_in_forward_is_a_tensor_of_its_own() -> None:
    forward = sum_of_two(Phase("forward", 0, 0))
    assert added_in_place(forward) == forward


def test_a_sum_of_another_size_is_a_tensor_of_its_own() -> None:
    broadcast = sum_of_two(Phase("backward", 0, 0), third=2 * MIB)
    assert added_in_place(broadcast) == broadcast


def test_sums_of_sums_stay_in_the_first_tensor() -> None:
    events: list[Event] = [Phase("backward", 0, 0), Alloc(0), Alloc(1), Alloc(2), ADD, Free(0), Free(1)]
    events += [Alloc(3), Alloc(4), ADD, Free(2), Free(3), Free(4)]
    found = storage_events(added_in_place(trace([(MIB, "temporaries")] * 5, events)))
    assert found == [Alloc(0), Alloc(1), Free(1), Alloc(3), Free(3), Free(0)]


def test_a_repeated_update_frees_what_the_one_before_kept() -> None:
    # Each update keeps its outputs until the next has its own.
    events: list[Event] = [Phase("forward", 0, 0), Alloc(0), Phase("forward", 1, 0), Alloc(1), Free(0)]
    found = steady(trace([(MIB, "activations"), (MIB, "activations")], events), times=2)
    assert storage_events(found) == [Alloc(0), Alloc(1), Free(0), Alloc(2), Free(1), Alloc(3), Free(2)]
    assert [storage.bytes for storage in found.storages] == [MIB] * 4


def test_nothing_is_repeated_of_a_trace_without_a_second_update() -> None:
    one = trace([(MIB, "activations")], [Phase("forward", 0, 0), Alloc(0), Free(0), Phase("end", 1, 0)])
    assert steady(one) == one


def test_a_settled_trace_adds_in_place_and_goes_on() -> None:
    events: list[Event] = [Phase("backward", 1, 0), Alloc(0), Alloc(1), Alloc(2), ADD, Free(0), Free(1), Free(2)]
    found = storage_events(settled(trace([(MIB, "temporaries")] * 3, events)))
    # The sum, number 2, is in the first; repetitions have numbers for two.
    assert found == [event for n in (0, 3, 5) for event in (Alloc(n), Alloc(n + 1), Free(n + 1), Free(n))]


def test_each_thread_that_multiplies_asks_for_a_workspace_once() -> None:
    product = op(name="aten::mm")
    events: list[Event] = [Phase("forward", 0, 0), product, product, Phase("backward", 0, 0), product]
    found = [(request.part, request.bytes) for request in requests(trace([], events), T4)]
    assert found == [(WORKSPACES, 8 * MIB + 128 * 1024)] * 2


def test_a_first_batch_that_is_smaller_leaves_the_weights_as_they_are() -> None:
    events: list[Event] = [Alloc(0), Phase("forward", 0, 0), Alloc(1), Alloc(2), Phase("forward", 1, 0), Alloc(3)]
    found = trace([(MIB, "weights"), (MIB, "gradients"), (MIB, "activations"), (MIB, "activations")], events)
    sizes = [request.bytes for request in requests(found, T4, first_share=0.5)]
    assert sizes[:4] == [MIB, MIB, MIB // 2, MIB]
