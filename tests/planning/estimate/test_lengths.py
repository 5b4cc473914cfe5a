"""Requests of microbatches of other lengths than the traced one."""

import pytest

from shoestring.base.units import MIB
from shoestring.hardware.catalog import DEVICES
from shoestring.planning.estimate.lengths import VaryingLengths, VaryingRequests
from shoestring.planning.estimate.memory import memory
from shoestring.planning.estimate.requests import requests
from shoestring.planning.trace.record import Alloc, Event, Free, Phase, Trace
from tests.planning.estimate.example_traces import trace

T4 = DEVICES["t4"]
WEIGHTS, GRADIENTS, STATES = 0, 1, 2


def updates_of_two_microbatches(length: int) -> Trace:
    """Return a trace of samples of so many tokens: activations grow with the length, scores with its square. The last
    output of a microbatch is freed in the next one.
    """
    storages = [(4 * MIB, "weights"), (4 * MIB, "gradients"), (8 * MIB, "optimizer states")]
    events: list[Event] = [Phase("model", 0, 0), Alloc(WEIGHTS)]
    output = None
    for update in range(2):
        for microbatch in range(2):
            first = len(storages)
            storages += [
                (length * MIB, "activations"),
                (length**2 * MIB // 64, "activations"),
                (length * 1024, "activations"),
            ]
            events += [Phase("forward", update, microbatch), Alloc(first), Alloc(first + 1), Alloc(first + 2)]
            events += [Free(output)] if output is not None else []
            events += [Phase("backward", update, microbatch), Free(first + 1)]
            events += [Alloc(GRADIENTS)] if not microbatch else []
            events += [Free(first)]
            output = first + 2
        events += [Phase("optimizer", update, 0), *([] if update else [Alloc(STATES)]), Free(GRADIENTS)]
    return trace(storages, [*events, Phase("end", 1, 0)], microbatches=2)


@pytest.fixture(scope="module")
def varying() -> VaryingRequests:
    longer, shorter = (requests(updates_of_two_microbatches(length), T4) for length in (16, 8))
    return VaryingRequests(longer, shorter, 0.5)


def sizes(varying: VaryingRequests, updates: list[list[float]]) -> list[int]:
    return [request.bytes for request in varying.of_updates(updates) if request.bytes is not None]


def test_traced_length_has_the_requests_of_the_trace(varying: VaryingRequests) -> None:
    traced = requests(updates_of_two_microbatches(16), T4)
    assert sizes(varying, [[1.0, 1.0]] * 2) == [request.bytes for request in traced if request.bytes is not None]


def test_sizes_follow_the_length_by_their_power(varying: VaryingRequests) -> None:
    of_microbatch = sizes(varying, [[0.25, 0.25]])[1:4]
    assert of_microbatch == [4 * MIB, MIB // 4, 4 * 1024]


@pytest.mark.parametrize("counts", [[5, 5, 5], [1, 3, 2, 1, 4]])
def test_all_that_is_allocated_is_freed_but_the_last_output(varying: VaryingRequests, counts: list[int]) -> None:
    live: dict[object, tuple[str, int]] = {}
    for request in varying.of_updates([[1.0, 0.5, 0.25, 0.75, 0.5][:count] for count in counts]):
        if request.bytes is not None:
            assert request.key not in live
            live[request.key] = request.part, request.bytes
        else:
            live.pop(request.key, None)
    assert sorted(part for part, _ in live.values()) == ["activations", "optimizer states", "weights"]


def test_an_update_of_stages_is_refused() -> None:
    stages = trace(
        [], [Phase("forward", 0, 0), Phase("optimizer", 0, 0), Phase("forward", 0, 0), Phase("forward", 1, 0)]
    )
    both = requests(stages, T4)
    with pytest.raises(ValueError, match="several stages"):
        VaryingRequests(both, both, 0.5)


def test_growing_lengths_reserve_more_than_shrinking_ones() -> None:
    longer, shorter = (updates_of_two_microbatches(length) for length in (64, 32))
    orders = [[(position + 1) / 8] * 2 for position in range(8)]

    def reserved(order: list[list[float]], worst: list[list[float]]) -> tuple[int, int]:
        lengths = VaryingLengths(shorter=shorter, share=0.5, likely=order, worst=worst)
        breakdown = memory(longer, T4, varying=lengths)
        assert sum(part.bytes for part in breakdown.parts) == breakdown.peak_bytes
        assert breakdown.reserved.value <= breakdown.reserved.high
        return breakdown.reserved.value, breakdown.reserved.high

    growing, shrinking = reserved(orders, orders), reserved(orders[::-1], orders)
    assert growing[0] > 1.5 * shrinking[0]
    assert shrinking[1] >= growing[0]
    assert memory(longer, T4).reserved.value <= growing[0]
