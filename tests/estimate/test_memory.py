"""Memory from traces made by hand: parts of the peak's moment, rounded as CUDA's allocator does, that sum."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoestring.estimate import Breakdown, memory
from shoestring.estimate.memory import Range
from shoestring.hardware.catalog import DEVICES, Device
from shoestring.hardware.probe import local_cpu
from shoestring.trace.record import PARTS, Alloc, Event, Free, Part, Phase
from shoestring.units import MIB
from tests.estimate.handmade_traces import TRAINING, op, trace

T4 = DEVICES["t4"]
WORKSPACE = 8 * MIB + 128 * 1024


def parts(breakdown: Breakdown) -> dict[str, int]:
    return {part.name: part.bytes for part in breakdown.parts}


def test_the_parts_are_those_of_the_moment_of_the_peak() -> None:
    context = T4.context_bytes[1]
    found = parts(memory(TRAINING, T4))
    # 11 MiB get a segment of 12 MiB, of which no remainder of 1 MiB is split off. The small pool has one segment of
    # 2 MiB, and both workspaces share one of 20 MiB.
    assert found == {
        "weights": 4096,
        "activations": 12 * MIB,
        "temporaries": 30 * MIB,
        "cuBLAS workspaces": 2 * WORKSPACE,
        "allocator slack": (2 + 12 + 30 + 20) * MIB - 4096 - 42 * MIB - 2 * WORKSPACE,
        "CUDA context": context,
    }


def test_the_range_is_one_large_tensor_and_what_kernels_may_take() -> None:
    breakdown = memory(TRAINING, T4)
    live = 4096 + 42 * MIB + 2 * WORKSPACE
    unknown = round(live * 0.02)
    # 11 MiB have a block of 12 MiB, of which the low end counts what was asked for.
    assert breakdown.allocated == Range(live - MIB - unknown, live, live + unknown)
    # The largest tensor that comes and goes has 30 MiB.
    reserved, doubt = 64 * MIB, 30 * MIB + unknown
    assert breakdown.reserved == Range(live - MIB - unknown, reserved, reserved + doubt)
    low, typical, high = T4.context_bytes
    assert breakdown.low_bytes == breakdown.reserved.low + low
    assert breakdown.peak_bytes == reserved + typical
    assert breakdown.high_bytes == reserved + doubt + high


def test_half_of_a_modelled_reserve_space_is_in_doubt() -> None:
    modelled = trace([(40 * MIB, "reserve space"), (40 * MIB, "weights")], [Phase("forward", 0, 0), Alloc(0), Alloc(1)])
    plain = trace([(40 * MIB, "activations"), (40 * MIB, "weights")], [Phase("forward", 0, 0), Alloc(0), Alloc(1)])
    with_model, without = memory(modelled, T4), memory(plain, T4)
    assert with_model.high_bytes - without.high_bytes == 20 * MIB
    assert without.low_bytes - with_model.low_bytes == 20 * MIB


def test_cudnn_may_try_algorithms_that_copy_their_operands() -> None:
    convolutions = [op(name="aten::convolution", size=size * MIB) for size in (7, 5)]
    steps = trace([(MIB, "weights")], [Alloc(0), *convolutions])
    plain, tried = memory(steps, T4), memory(steps, T4, cudnn_benchmark=True)
    assert tried.high_bytes - plain.high_bytes == 7 * MIB
    assert tried.peak_bytes == plain.peak_bytes


def first_update_and_second(first_batches: tuple[tuple[float, float], ...]) -> Breakdown:
    """40 MiB for a batch, given back before the next; a first batch of half of it leaves a segment of 20 MiB."""
    events: list[Event] = []
    for number in range(2):
        events += [Phase("forward", number, 0), Alloc(number), Phase("optimizer", number, 0), Free(number)]
    steps = trace([(40 * MIB, "batch")] * 2, [*events, Phase("end", 1, 0)])
    return memory(dataclasses.replace(steps, first_batches=first_batches), T4)


@pytest.mark.parametrize(("likely", "expected", "most"), [(0.0, 40, 40), (0.02, 40, 40), (0.4, 40, 60), (0.6, 60, 60)])
def test_a_smaller_first_batch_counts_as_far_as_it_is_likely(likely: float, expected: int, most: int) -> None:
    found = first_update_and_second(((0.5, likely),) if likely else ())
    assert found.reserved.value == expected * MIB
    # And the largest tensor once more, and the kernels' share.
    assert found.reserved.high == most * MIB + 40 * MIB + round(40 * MIB * 0.02)


def test_where_it_fits_beside_the_smallest_context_alone_it_is_expected_to() -> None:
    rtx = DEVICES["rtx3060"]
    low, typical, _ = rtx.context_bytes
    steps = trace([(40 * MIB, "temporaries"), (50 * MIB, "activations")], [Alloc(0), Free(0), Alloc(1)])
    tight = memory(steps, dataclasses.replace(rtx, memory_bytes=52 * MIB + low))
    assert low < typical
    assert tight.reserved.value == 50 * MIB
    assert not tight.fits


def test_hopper_has_larger_workspaces() -> None:
    assert parts(memory(TRAINING, DEVICES["h100"]))["cuBLAS workspaces"] == 64 * MIB


def test_near_the_limit_unused_segments_are_given_back() -> None:
    high = T4.context_bytes[2]
    # 40 MiB freed, then 50 MiB asked for: 92 MiB reserved where there is room, 50 MiB where there is not.
    steps = trace(
        [(40 * MIB, "temporaries"), (50 * MIB, "activations")], [Alloc(0), Free(0), Alloc(1), Phase("end", 1, 0)]
    )
    doubt = 50 * MIB + round(50 * MIB * 0.02)
    roomy = memory(steps, T4)
    assert roomy.high_bytes == 90 * MIB + doubt + high
    full = dataclasses.replace(T4, memory_bytes=60 * MIB + doubt + high)
    assert memory(steps, full).high_bytes == full.memory_bytes
    small = dataclasses.replace(T4, memory_bytes=49 * MIB + doubt + high)
    assert memory(steps, small).high_bytes == roomy.high_bytes > small.memory_bytes


def test_on_a_cpu_there_are_tensors_and_the_process() -> None:
    breakdown = memory(TRAINING, local_cpu().device)
    assert parts(breakdown) == {
        "weights": 4000,
        "activations": 11 * MIB,
        "temporaries": 30 * MIB,
        "process": 200_000_000,
    }
    assert breakdown.low_bytes == breakdown.peak_bytes
    assert breakdown.high_bytes == breakdown.peak_bytes + 4000 + 41 * MIB + 30_000_000


storages = st.lists(st.tuples(st.integers(1, 30 * MIB), st.sampled_from(PARTS)), max_size=20)


@given(storages, st.sampled_from([*DEVICES.values(), local_cpu().device]))
def test_parts_sum_to_a_peak_within_its_range(made: list[tuple[int, Part]], device: Device) -> None:
    breakdown = memory(trace(made, [Alloc(index) for index in range(len(made))]), device)
    json = breakdown.json()
    assert sum(part["bytes"] for part in json["parts"]) == json["peak_bytes"]
    assert json["low_bytes"] <= json["peak_bytes"] <= json["high_bytes"]
    assert json["peak_bytes"] >= sum(size for size, _ in made)
    assert json["fits"] == (json["high_bytes"] <= json["capacity_bytes"])
    assert all(part["source"] for part in json["parts"])
