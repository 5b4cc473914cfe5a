"""Peak memory of handmade traces, as parts that sum and are rounded as by CUDA's allocator."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoestring.base.units import MIB
from shoestring.hardware.catalog import DEVICES, Device
from shoestring.hardware.probe import local_cpu
from shoestring.planning.estimate.memory import Breakdown, Range, memory
from shoestring.planning.trace.record import PARTS, Alloc, Event, Free, Part, Phase
from tests.planning.estimate.example_traces import TRAINING, op, trace

A100, T4 = DEVICES["a100-40"], DEVICES["t4"]
WORKSPACE = 32 * MIB


def parts(breakdown: Breakdown) -> dict[str, int]:
    return {part.name: part.bytes for part in breakdown.parts}


def test_parts_are_those_at_the_peak() -> None:
    context = T4.context_bytes[1]
    peak_parts = parts(memory(TRAINING, T4))
    # 11 MiB get a segment of 12 MiB, whose remainder of 1 MiB is not split off. The small pool has one segment of
    # 2 MiB, and each workspace one of its own size.
    assert peak_parts == {
        "weights": 4096,
        "activations": 12 * MIB,
        "temporaries": 30 * MIB,
        "cuBLAS workspaces": 2 * WORKSPACE,
        "allocator slack": (2 + 12 + 30) * MIB - 4096 - 42 * MIB,
        "CUDA context": context,
    }


def test_range_covers_one_tensor_and_unknown_workspaces() -> None:
    breakdown = memory(TRAINING, T4)
    live = 4096 + 42 * MIB + 2 * WORKSPACE
    unknown = round(live * 0.02)
    # 11 MiB have a block of 12 MiB, of which the lower bound counts only the requested bytes.
    assert breakdown.allocated == Range(live - MIB - unknown, live, live + unknown)
    # The largest temporary tensor has 30 MiB.
    reserved, uncertainty = (2 + 12 + 30) * MIB + 2 * WORKSPACE, 30 * MIB + unknown
    assert breakdown.reserved == Range(live - MIB - unknown, reserved, reserved + uncertainty)
    low, typical, high = T4.context_bytes
    assert breakdown.low_bytes == breakdown.reserved.low + low
    assert breakdown.peak_bytes == reserved + typical
    assert breakdown.high_bytes == reserved + uncertainty + high


def test_range_includes_half_of_a_reserve_space() -> None:
    recurrent = trace(
        [(40 * MIB, "reserve space"), (40 * MIB, "weights")], [Phase("forward", 0, 0), Alloc(0), Alloc(1)]
    )
    plain = trace([(40 * MIB, "activations"), (40 * MIB, "weights")], [Phase("forward", 0, 0), Alloc(0), Alloc(1)])
    recurrent_memory, plain_memory = memory(recurrent, T4), memory(plain, T4)
    # And the workspace of its backward pass, of four times its size.
    assert recurrent_memory.high_bytes - plain_memory.high_bytes == (20 + 4 * 40) * MIB
    assert plain_memory.low_bytes - recurrent_memory.low_bytes == 20 * MIB


def test_cudnn_benchmark_may_copy_operands() -> None:
    convolutions = [op(name="aten::convolution", size=size * MIB) for size in (7, 5)]
    steps = trace([(MIB, "weights")], [Alloc(0), *convolutions])
    plain, benchmarked = memory(steps, T4), memory(steps, T4, cudnn_benchmark=True)
    assert benchmarked.high_bytes - plain.high_bytes == 7 * MIB
    assert benchmarked.peak_bytes == plain.peak_bytes
    # cuDNN skips an algorithm whose workspace does not fit, so it does not decide.
    tight = dataclasses.replace(T4, memory_bytes=plain.high_bytes + MIB)
    assert memory(steps, tight).fits and memory(steps, tight, cudnn_benchmark=True).fits


def estimate_convolutions(device: Device) -> Breakdown:
    """Estimate two convolutions in 40 MiB of activations, with operands of 60 and 120 MiB beside their results."""
    convolutions = [
        dataclasses.replace(op(name="aten::convolution", size=(20 + size) * MIB), shape=(1, 5 * MIB, 1, 1))
        for size in (60, 120)
    ]
    steps = [Phase("forward", 0, 0), Alloc(0), Alloc(1), *convolutions]
    return memory(trace([(20 * MIB, "activations")] * 2, steps), device)


def test_high_end_covers_workspaces_of_convolutions_on_tensor_cores() -> None:
    turing, ampere = estimate_convolutions(T4), estimate_convolutions(A100)
    assert turing.reserved.value == ampere.reserved.value == 40 * MIB
    # Without workspaces the range is one tensor and 2%; the second workspace does not fit the block of the first.
    assert turing.reserved.high == 60 * MIB + round(0.02 * 40 * MIB)
    assert ampere.reserved.high == (40 + 60 + 120) * MIB
    assert ampere.allocated.high == (40 + 120) * MIB


def test_workspaces_that_do_not_fit_are_left_out() -> None:
    small = dataclasses.replace(A100, memory_bytes=A100.context_bytes[0] + 110 * MIB)
    assert estimate_convolutions(small).reserved.high == (40 + 60) * MIB


def estimate_two_updates(first_batches: tuple[tuple[float, float], ...]) -> Breakdown:
    """Estimate 40 MiB for a batch, freed before the next; a first batch of half of it leaves a segment of 20 MiB."""
    events: list[Event] = []
    for number in range(2):
        events += [Phase("forward", number, 0), Alloc(number), Phase("optimizer", number, 0), Free(number)]
    steps = trace([(40 * MIB, "batch")] * 2, [*events, Phase("end", 1, 0)])
    return memory(dataclasses.replace(steps, first_batches=first_batches), T4)


@pytest.mark.parametrize(
    ("probability", "expected", "high"), [(0.0, 40, 40), (0.02, 40, 40), (0.4, 40, 60), (0.6, 60, 60)]
)
def test_smaller_first_batch_counts_by_its_probability(probability: float, expected: int, high: int) -> None:
    breakdown = estimate_two_updates(((0.5, probability),) if probability else ())
    assert breakdown.reserved.value == expected * MIB
    # The upper bound adds the largest tensor and the kernels' workspaces.
    assert breakdown.reserved.high == high * MIB + 40 * MIB + round(40 * MIB * 0.02)


def test_expected_memory_may_need_the_smallest_context() -> None:
    rtx = DEVICES["rtx3060"]
    low, typical, _ = rtx.context_bytes
    steps = trace([(40 * MIB, "temporaries"), (50 * MIB, "activations")], [Alloc(0), Free(0), Alloc(1)])
    tight = memory(steps, dataclasses.replace(rtx, memory_bytes=52 * MIB + low))
    assert low < typical
    assert tight.reserved.value == 50 * MIB
    assert not tight.fits


def test_hopper_has_larger_workspaces() -> None:
    assert parts(memory(TRAINING, DEVICES["h100"]))["cuBLAS workspaces"] == 64 * MIB


def test_unused_segments_are_released_near_the_limit() -> None:
    high = T4.context_bytes[2]
    # 40 MiB are freed, then 50 MiB requested: 90 MiB are reserved if they fit, otherwise 50 MiB.
    steps = trace(
        [(40 * MIB, "temporaries"), (50 * MIB, "activations")], [Alloc(0), Free(0), Alloc(1), Phase("end", 1, 0)]
    )
    unknown = round(50 * MIB * 0.02)
    unlimited = memory(steps, T4)
    assert unlimited.high_bytes == 90 * MIB + 50 * MIB + unknown + high
    # No large tensor is left free: near the limit, a block that it does not fit is released for it.
    full = dataclasses.replace(T4, memory_bytes=50 * MIB + unknown + high)
    assert memory(steps, full).high_bytes == full.memory_bytes
    small = dataclasses.replace(T4, memory_bytes=49 * MIB + unknown + high)
    assert memory(steps, small).high_bytes == unlimited.high_bytes > small.memory_bytes


def test_fit_needs_the_memory_that_the_device_is_expected_to_have_too() -> None:
    storages: list[tuple[int, Part]] = [(size * MIB, "activations") for size in (47, 50, 12, 60)]
    first, second = [Alloc(0), Free(0)], [Alloc(1), Alloc(2), Free(1), Alloc(3), Free(3), Free(2)]
    steps = trace(storages, [Phase("forward", 0, 0), *first, Phase("forward", 1, 0), *second, Phase("end", 1, 0)])
    # A first batch of 47 MiB is released for the next 50. One of 40 stays in 95 MiB, 12 split its block, and 60 do not
    # fit; in the 75 MiB that the largest context leaves, it is released too.
    device = dataclasses.replace(T4, memory_bytes=95 * MIB, context_bytes=(0, 0, 18 * MIB))
    assert memory(steps, device).fits
    assert not memory(dataclasses.replace(steps, first_batches=((40 / 47, 0.25),)), device).fits


def test_fit_leaves_memory_for_the_workspace_of_a_recurrent_layer() -> None:
    steps = trace([(40 * MIB, "reserve space")], [Phase("forward", 0, 0), Alloc(0), Phase("end", 1, 0)])
    # The reserve space and half of it, a workspace of four times its size, and 2%.
    needed = (40 + 20 + 4 * 40) * MIB + round(40 * MIB * 0.02) + T4.context_bytes[2]
    assert memory(steps, dataclasses.replace(T4, memory_bytes=needed)).fits
    assert not memory(steps, dataclasses.replace(T4, memory_bytes=needed - MIB)).fits


def test_fit_needs_room_for_what_workspaces_of_convolutions_leave() -> None:
    convolution = dataclasses.replace(op(name="aten::convolution", size=80 * MIB), shape=(1, 5 * MIB, 1, 1))
    storages: list[tuple[int, Part]] = [
        (20 * MIB, "activations"),
        (30 * MIB, "optimizer states"),
        (36 * MIB, "gradients"),
    ]
    steps = trace(storages, [Phase("forward", 0, 0), Alloc(0), convolution, Alloc(1), Alloc(2), Phase("end", 1, 0)])

    def estimate_within(memory_bytes: int, device: Device) -> Breakdown:
        unknown = round((20 + 30 + 36) * MIB * 0.02)
        return memory(steps, dataclasses.replace(device, memory_bytes=memory_bytes + unknown, context_bytes=(0, 0, 0)))

    # The states split the block of the workspace of 60 MiB, and the gradients do not fit what is left of it.
    assert estimate_within((20 + 60 + 36) * MIB, A100).fits
    assert not estimate_within(110 * MIB, A100).fits
    # A T4 computes fp32 without tensor cores, hence without this workspace.
    assert estimate_within((20 + 30 + 36) * MIB, T4).fits


def test_cpu_parts_are_tensors_and_the_process() -> None:
    breakdown = memory(TRAINING, local_cpu().device)
    assert parts(breakdown) == {
        "weights": 4000,
        "activations": 11 * MIB,
        "temporaries": 30 * MIB,
        "process": 200_000_000,
    }
    assert breakdown.low_bytes == breakdown.peak_bytes
    assert breakdown.high_bytes == breakdown.peak_bytes + 4000 + 41 * MIB + 30_000_000


STORAGES = st.lists(st.tuples(st.integers(1, 30 * MIB), st.sampled_from(PARTS)), max_size=20)


@given(STORAGES, st.sampled_from([*DEVICES.values(), local_cpu().device]))
def test_parts_sum_to_a_peak_within_its_range(storages: list[tuple[int, Part]], device: Device) -> None:
    breakdown = memory(trace(storages, [Alloc(index) for index in range(len(storages))]), device)
    json = breakdown.json()
    assert sum(part["bytes"] for part in json["parts"]) == json["peak_bytes"]
    assert json["low_bytes"] <= json["peak_bytes"] <= json["high_bytes"]
    assert json["peak_bytes"] >= sum(size for size, _ in storages)
    assert json["fits"] == (json["high_bytes"] <= json["capacity_bytes"])
    assert all(part["source"] for part in json["parts"])


PACKED = trace(
    [(30 * MIB, "loading copies"), (12 * MIB, "weights"), (25 * MIB, "activations"), (40 * MIB, "activations")],
    [
        Phase("model", 0, 0),
        *(Alloc(0), Alloc(1), Free(0)),
        Phase("forward", 0, 0),
        *(Alloc(2), Alloc(3)),
        Phase("end", 1, 0),
    ],
)
"""A weight of 30 MiB is packed into 12. Its block takes the first activation, and the second needs a new one."""


def test_what_loading_leaves_unused_is_a_part() -> None:
    breakdown = memory(PACKED, T4)
    assert parts(breakdown)["left by loading"] == 5 * MIB
    assert breakdown.reserved.value == (30 + 12 + 40) * MIB
    assert "allocator slack" not in parts(breakdown)
    assert breakdown.loading_bytes == 42 * MIB + T4.context_bytes[1]


def test_a_model_may_fit_only_after_it_is_loaded() -> None:
    storages = [(200 * MIB, "loading copies"), (40 * MIB, "weights")]
    loading = trace(storages, [Phase("model", 0, 0), Alloc(0), Alloc(1), Free(0), Phase("forward", 0, 0)])
    small = dataclasses.replace(T4, memory_bytes=T4.context_bytes[1] + 210 * MIB)
    assert parts(memory(loading, small))["loading copies"] == 200 * MIB
    assert not memory(loading, small).fits
    assert memory(loading, small).loading_bytes > small.memory_bytes


def test_loading_copies_do_not_depend_on_the_batch() -> None:
    steps = dataclasses.replace(PACKED, first_batches=((0.5, 0.9),))
    assert memory(steps, T4).loading_bytes == memory(PACKED, T4).loading_bytes
    # The range is one largest tensor of the batch wide, and 2% for workspaces.
    assert memory(PACKED, T4).reserved.high == 82 * MIB + 40 * MIB + round(77 * MIB * 0.02)


def test_on_a_cpu_loading_is_part_of_the_peak() -> None:
    assert memory(PACKED, local_cpu().device).loading_bytes == 42 * MIB + PACKED.facts.process_bytes
