"""Memory from traces made by hand: parts of the peak's moment, rounded as CUDA's allocator does, that sum."""

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from shoestring.estimate import Breakdown, memory
from shoestring.hardware.catalog import DEVICES, Device
from shoestring.hardware.probe import local_cpu
from shoestring.trace.record import PARTS, Alloc, Free, Part, Phase
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


def test_the_range_is_made_of_what_it_says() -> None:
    low, _, high = T4.context_bytes
    breakdown = memory(TRAINING, T4)
    assert breakdown.low_bytes == 4096 + 42 * MIB + 2 * WORKSPACE + low
    # A first batch shorter by an eighth: 9.625 MiB share a segment of 20 MiB with one workspace, so the other has its
    # own; 26.25 MiB have 28 MiB.
    assert breakdown.high_bytes == (2 + 20 + 20 + 28) * MIB + high


def test_allocated_and_reserved_are_told_apart() -> None:
    breakdown = memory(TRAINING, T4)
    assert breakdown.allocated_peak_bytes == 4096 + 42 * MIB + 2 * WORKSPACE
    assert breakdown.reserved_peak_bytes == 64 * MIB
    assert breakdown.peak_bytes == 64 * MIB + T4.context_bytes[1]


def test_half_of_a_modelled_reserve_space_is_in_doubt() -> None:
    modelled = trace([(40 * MIB, "reserve space")], [Phase("forward", 0, 0), Alloc(0)])
    breakdown = memory(modelled, T4)
    low, _, high = T4.context_bytes
    assert (breakdown.low_bytes, breakdown.high_bytes) == (20 * MIB + low, 60 * MIB + high)


def test_a_convolution_may_take_a_workspace() -> None:
    convolution = op(name="aten::convolution", size=7 * MIB)
    without = memory(trace([(MIB, "weights")], [Alloc(0)]), T4)
    breakdown = memory(trace([(MIB, "weights")], [Alloc(0), convolution]), T4)
    # A workspace as large as the operands gets a segment of 20 MiB and is no part of the peak.
    assert breakdown.high_bytes - without.high_bytes == 20 * MIB
    assert breakdown.peak_bytes == without.peak_bytes


def test_a_workspace_that_does_not_fit_is_done_without() -> None:
    convolution = op(name="aten::convolution", size=100 * MIB)
    steps = trace([(40 * MIB, "weights")], [Alloc(0), convolution])
    tight = memory(steps, dataclasses.replace(T4, memory_bytes=60 * MIB + T4.context_bytes[2]))
    assert tight.high_bytes == 40 * MIB + T4.context_bytes[2]
    assert tight.fits


def test_hopper_has_larger_workspaces() -> None:
    assert parts(memory(TRAINING, DEVICES["h100"]))["cuBLAS workspaces"] == 64 * MIB


def test_near_the_limit_unused_segments_are_given_back() -> None:
    high = T4.context_bytes[2]
    # 40 MiB freed, then 50 MiB asked for: 92 MiB reserved where there is room, 52 MiB where there is not.
    steps = trace(
        [(40 * MIB, "temporaries"), (50 * MIB, "activations")], [Alloc(0), Free(0), Alloc(1), Phase("end", 1, 0)]
    )
    roomy = memory(steps, T4)
    tight = memory(steps, dataclasses.replace(T4, memory_bytes=60 * MIB + high))
    assert roomy.high_bytes - tight.high_bytes == 40 * MIB
    assert tight.fits
    assert not memory(steps, dataclasses.replace(T4, memory_bytes=49 * MIB + high)).fits


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
