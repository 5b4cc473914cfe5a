"""Requests of a trace to the allocator, where the engine differs from the record, and in repeated updates."""

import dataclasses

import pytest

from shoestring.base.units import MIB
from shoestring.hardware.catalog import DEVICES, Device
from shoestring.planning.estimate.requests import (
    CONVOLUTION_WORKSPACES,
    WORKSPACES,
    Request,
    accumulate_in_place,
    repeat_second_update,
    requests,
    with_smaller_first_batch,
)
from shoestring.planning.trace.record import Alloc, Event, Free, Op, Phase, Reduction, Trace
from tests.planning.estimate.example_traces import op, trace

A100, T4 = DEVICES["a100-40"], DEVICES["t4"]
ADD = op(name="aten::add.Tensor")
SUM = dataclasses.replace(ADD, in_place=True)


def storage_events(trace: Trace) -> list[Event]:
    return [event for event in trace.events if isinstance(event, Alloc | Free)]


def sum_of_two(operator: Op) -> Trace:
    phase = Phase("backward", 0, 0)
    return trace([(MIB, "temporaries")] * 3, [phase, Alloc(0), Alloc(1), Alloc(2), operator, Free(0), Free(1), Free(2)])


def test_sum_of_gradients_needs_no_third_tensor() -> None:
    in_place = accumulate_in_place(sum_of_two(SUM))
    assert storage_events(in_place) == [Alloc(0), Alloc(1), Free(1), Free(0)]
    assert accumulate_in_place(in_place) == in_place


def test_other_sum_is_a_separate_tensor() -> None:
    separate = sum_of_two(ADD)
    assert accumulate_in_place(separate) == separate


def test_own_memory_of_an_operator_in_place_stays() -> None:
    events: list[Event] = [Alloc(0), Alloc(1), Alloc(2), Free(2), SUM, Free(0), Free(1)]
    remaining = storage_events(accumulate_in_place(trace([(MIB, "temporaries")] * 3, events)))
    assert remaining == [Alloc(0), Alloc(2), Free(2), Free(0)]


def test_sums_of_sums_stay_in_the_first_tensor() -> None:
    events: list[Event] = [Phase("backward", 0, 0), Alloc(0), Alloc(1), Alloc(2), SUM, Free(0), Free(1)]
    events += [Alloc(3), Alloc(4), SUM, Free(2), Free(3), Free(4)]
    remaining_events = storage_events(accumulate_in_place(trace([(MIB, "temporaries")] * 5, events)))
    assert remaining_events == [Alloc(0), Alloc(1), Free(1), Alloc(3), Free(3), Free(0)]


def test_repeated_update_frees_storages_of_the_previous() -> None:
    # Each update retains its outputs until the next has its own.
    events: list[Event] = [Phase("forward", 0, 0), Alloc(0), Phase("forward", 1, 0), Alloc(1), Free(0)]
    repeated = repeat_second_update(trace([(MIB, "activations"), (MIB, "activations")], events), times=2)
    assert storage_events(repeated) == [Alloc(0), Alloc(1), Free(0), Alloc(2), Free(1), Alloc(3), Free(2)]
    assert [storage.bytes for storage in repeated.storages] == [MIB] * 4


def test_trace_without_second_update_is_unchanged() -> None:
    one_update = trace([(MIB, "activations")], [Phase("forward", 0, 0), Alloc(0), Free(0), Phase("end", 1, 0)])
    assert repeat_second_update(one_update) == one_update


def test_repeated_update_accumulates_in_place() -> None:
    events: list[Event] = [Phase("backward", 1, 0), Alloc(0), Alloc(1), Alloc(2), SUM, Free(0), Free(1), Free(2)]
    in_place = accumulate_in_place(trace([(MIB, "temporaries")] * 3, events))
    repeated = storage_events(repeat_second_update(in_place))
    # The sum, storage 2, is in the first storage, so each repetition adds two storages.
    assert repeated == [event for n in (0, 3, 5) for event in (Alloc(n), Alloc(n + 1), Free(n + 1), Free(n))]


def test_each_multiplying_thread_requests_one_workspace() -> None:
    product = op(name="aten::mm")
    events: list[Event] = [Phase("forward", 0, 0), product, product, Phase("backward", 0, 0), product]

    def workspaces(device: Device, *, deterministic: bool) -> list[tuple[str, int | None]]:
        all_requests = requests(trace([], events), device, deterministic=deterministic)
        return [(request.part, request.bytes) for request in all_requests if request.part]

    # Allocated by an H200 and by the allocator of torch 2.11.
    assert workspaces(T4, deterministic=True) == [(WORKSPACES, 32 * MIB)] * 2
    assert workspaces(T4, deterministic=False) == [(WORKSPACES, 8 * MIB + 128 * 1024)] * 2
    assert workspaces(DEVICES["h100"], deterministic=False) == [(WORKSPACES, 32 * MIB)] * 2


def test_products_with_a_bias_have_cublaslts_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    # For `linear` with a bias torch 2.10 asks for 1 MiB once, after that of cuBLAS; torch 2.13 does not.
    events: list[Event] = [Phase("forward", 0, 0), op(name="aten::mm"), *[op(name="aten::addmm")] * 2]
    for lt_bytes in (MIB, 0):
        monkeypatch.setattr("shoestring.hardware.cublas.separate_lt_bytes", lambda lt_bytes=lt_bytes: lt_bytes)
        expected = [32 * MIB, *filter(None, [lt_bytes])]
        assert [request.bytes for request in requests(trace([], events), T4) if request.part] == expected


def test_buffers_of_a_reduction_follow_its_result() -> None:
    total = dataclasses.replace(op(name="aten::sum"), buffers=Reduction(bytes=1024, blocks=2, threads=512, values=256))
    steps = trace([(8, "temporaries")], [Alloc(0), total, Free(0)])
    # 40 multiprocessors with two blocks each: 40 blocks for each result, but no more than have 16 values.
    assert [request.bytes for request in requests(steps, T4)] == [8, 16 * 1024, 8, None, None, None]


def test_convolutions_request_workspaces_after_their_results() -> None:
    convolution = dataclasses.replace(op(name="aten::convolution", size=10 * MIB), shape=(1, MIB, 1, 9))
    steps = trace([(4 * MIB, "activations")], [Phase("forward", 0, 0), Alloc(0), convolution, Free(0)])
    assert [request.part for request in requests(steps, A100)] == ["", *["activations"] * 2]  # and a phase
    _, allocation, workspace, end, free = requests(steps, A100, convolution_workspaces=True)
    assert (allocation.part, free.part) == ("activations", "activations")
    # 10 MiB of operands without a result of 4 MiB.
    assert workspace == Request(end.key, CONVOLUTION_WORKSPACES, 6 * MIB) and end.bytes is None


def test_gradients_that_fsdp2_reduces_are_on_a_stream_of_their_own() -> None:
    events: list[Event] = [Alloc(0), Alloc(1), Alloc(2)]
    sizes = [(MIB, "weights"), (MIB, "gradients"), (MIB, "all-gather buffers")]
    assert [request.stream for request in requests(trace(sizes, events), T4)] == ["", "reduce-scatter", "copy-in"]
    assert {request.stream for request in requests(trace(sizes[:2], events[:2]), T4)} == {""}  # without FSDP2


def test_smaller_first_batch_does_not_change_the_weights() -> None:
    events: list[Event] = [Alloc(0), Phase("forward", 0, 0), Alloc(1), Alloc(2), Phase("forward", 0, 1), Alloc(3)]
    updates = trace([(MIB, "weights"), (MIB, "gradients"), (MIB, "activations"), (MIB, "activations")], events)
    smaller = with_smaller_first_batch(requests(updates, T4), updates, 0.5)
    sizes = [request.bytes for request in smaller if request.bytes is not None]
    assert sizes == [MIB, MIB, MIB // 2, MIB]
