"""The time of streamed blocks, by schedules that can be followed by hand."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from shoestring.hardware import targets
from shoestring.hardware.catalog import DEVICES, Device
from shoestring.hardware.measured import AT_ONCE, PAGEABLE, PINNED, CopyTiming
from shoestring.planning.candidates import with_nominal_rates
from shoestring.planning.estimate.host_link import HostLink, copy_rates, host_link_of
from shoestring.planning.estimate.streaming import (
    Pace,
    host_bytes,
    saved_bytes,
    shared_uses,
    streamed_sizes,
    uses_of_microbatch,
    waiting_seconds,
)
from shoestring.planning.estimate.time import update_seconds
from shoestring.planning.trace.record import BlockUse, Trace
from tests.hardware.measured_files import GPU
from tests.planning.estimate.example_traces import op, update

BLOCKS = 8
MB = 10**6


def streamable(uses: Sequence[int] = range(BLOCKS), size: int = 100 * MB) -> Trace:
    """Return a trace with an operator in each use of a block, and one before and after all of them."""
    plain = update(forward=op(), backward=op(), optimizer=op())
    calls = tuple(BlockUse(block, index + 1, index + 2) for index, block in enumerate(uses))
    return replace(plain, block_bytes=(size,) * BLOCKS, block_uses=calls)


def pace(operators: int, seconds: float = 1.0, backward: float = 2.0) -> Pace:
    """Return the pace of a forward whose operators take `seconds` each, and of a backward that takes longer."""
    total = operators * seconds
    return Pace(tuple(seconds * (index + 1) for index in range(operators)), total, backward * total)


def test_bytes_of_streamed_blocks() -> None:
    trace = replace(streamable(), block_bytes=(1, 2, 3, 4, 5, 6, 7, 8))
    assert streamed_sizes(trace.block_bytes, 4) == [2, 4, 6, 8]
    assert host_bytes(trace, 4) == 20 and host_bytes(trace, None) == 0
    assert saved_bytes(trace.block_bytes, 4) == 20 - (6 + 8)  # the first slot has 2 and 6, the second 4 and 8
    assert saved_bytes(trace.block_bytes, 2) == 0


def test_backward_uses_the_blocks_in_reverse_order_of_the_last_forward() -> None:
    uses, after = uses_of_microbatch(streamable(), 2, pace(BLOCKS + 2))
    assert [(use.block, use.pass_) for use in uses] == [
        (0, "forward"),
        (1, "forward"),
        (1, "backward"),
        (0, "backward"),
    ]
    # Blocks 2 and 6 of 8; the forward takes 10 seconds, each block 1, and the backward twice as long.
    assert [use.before for use in uses] == pytest.approx([3, 3, 2 + 4, 6])
    assert [use.seconds for use in uses] == pytest.approx([1, 1, 2, 2])
    assert sum(use.before + use.seconds for use in uses) + after == pytest.approx(30)


def test_a_forward_before_the_last_one_has_no_backward() -> None:
    uses, _ = uses_of_microbatch(streamable([*range(BLOCKS)] * 2), BLOCKS, pace(2 * BLOCKS + 2))
    passes = [use.pass_ for use in uses]
    assert passes == ["inference"] * BLOCKS + ["forward"] * BLOCKS + ["backward"] * BLOCKS
    assert [use.block for use in uses[-BLOCKS:]] == [*range(BLOCKS)][::-1]


@pytest.mark.parametrize(
    ("copy_seconds", "waiting"),
    [
        # A block computes for 1 second forward and 2 backward, while the next one is copied.
        (0.5, 0.0),
        (1.0, 0.0),
        # Forward waits half a second for each of the six blocks that are not in a slot when it begins.
        (1.5, 6 * 0.5),
        # The six copies of a pass follow each other, from the end of the first block on to the beginning of the last.
        (10.0, (2 + 60 + 2) + (4 + 60 + 4) - 30),
    ],
)
def test_waiting_for_copies(copy_seconds: float, waiting: float) -> None:
    rate = 100 * MB / copy_seconds
    seconds = waiting_seconds(streamable(), BLOCKS, pace(BLOCKS + 2), rate, 0.0)
    assert seconds == pytest.approx(waiting, abs=1e-6)


def test_two_streamed_blocks_stay_in_their_slots() -> None:
    assert waiting_seconds(streamable(), 2, pace(BLOCKS + 2), 1.0, 0.0) == 0.0
    assert waiting_seconds(streamable(), None, pace(BLOCKS + 2), 1.0, 0.0) == 0.0


def test_evenly_spread_blocks_hide_more_than_all_of_them() -> None:
    def waiting(count: int) -> float:
        return waiting_seconds(streamable(), count, pace(BLOCKS + 2), 100 * MB / 1.9, 0.0)

    assert waiting(BLOCKS) > waiting(4) == pytest.approx(0.0, abs=0.3)


def test_microbatches_that_use_a_copy_together_hold_it_until_the_last_one_needs_it_no_more() -> None:
    uses, after = shared_uses(*uses_of_microbatch(streamable(), 2, pace(BLOCKS + 2)), 3)
    assert [(use.block, use.pass_) for use in uses] == [
        (0, "forward"),
        (1, "forward"),
        (1, "backward"),
        (0, "backward"),
    ]
    # Alone they are 3, 3, 6 and 6 seconds after the one before. Two microbatches go on before the last use of a copy.
    assert [use.before for use in uses] == pytest.approx([3 * 3, 3, 2 + 4, 6])
    assert [use.seconds for use in uses] == pytest.approx([3 * 1 + 2 * 3, 3 * 1, 3 * 2 + 2 * 6, 3 * 2 + 2 * 6])
    assert sum(use.before + use.seconds for use in uses) + after == pytest.approx(3 * 30)


@pytest.mark.parametrize(
    ("copy_seconds", "waiting"),
    [
        # A block computes for 4 seconds forward and 8 backward, while the next one is copied.
        (1.5, 0.0),
        (4.0, 0.0),
        # As in a microbatch with four times the computation.
        (40.0, 4 * ((2 + 60 + 2) + (4 + 60 + 4) - 30)),
        (10.0, (8 + 60 + 8) + (16 + 60 + 16) - 120),
    ],
)
def test_waiting_for_copies_that_four_microbatches_use(copy_seconds: float, waiting: float) -> None:
    rate = 100 * MB / copy_seconds
    seconds = waiting_seconds(streamable(), BLOCKS, pace(BLOCKS + 2), rate, 0.0, sharing=4)
    assert seconds == pytest.approx(waiting, abs=1e-6)


def test_in_the_order_of_blocks_a_group_of_microbatches_waits_as_often_as_one() -> None:
    def waiting(device: Device, microbatches: int, **values: Any) -> float:
        result = update_seconds(streamable(size=10**10), device, microbatches, streamed_blocks=BLOCKS, **values)
        assert result
        return result.parts["streaming"]

    t4, cpu = DEVICES["t4"], with_nominal_rates(targets.find("cpu").device)
    alone = waiting(t4, 1)
    assert waiting(t4, 1, passes=1) == alone
    assert waiting(t4, 16) == pytest.approx(16 * alone)
    for groups in (1, 2, 4):
        assert waiting(t4, 16, passes=groups) == pytest.approx(groups * alone, rel=0.01)
        assert waiting(cpu, 16, passes=groups) == pytest.approx(groups * waiting(cpu, 16) / 16)


def test_an_update_has_the_waiting_of_each_microbatch_as_a_part_of_its_own() -> None:
    def seconds(**values: Any) -> Any:
        result = update_seconds(streamable(size=10**10), DEVICES["t4"], values.pop("microbatches", 4), **values)
        assert result
        return result

    resident, streamed = seconds(), seconds(streamed_blocks=BLOCKS)
    assert "streaming" not in resident.parts
    assert {name: part for name, part in streamed.parts.items() if name != "streaming"} == dict(resident.parts)
    assert seconds(streamed_blocks=BLOCKS, microbatches=8).parts["streaming"] == pytest.approx(
        2 * streamed.parts["streaming"]
    )
    # 2 * 6 copies of 10 GB in each of 4 microbatches, of which next to nothing is hidden.
    rate = host_link_of(DEVICES["t4"]).bandwidth
    assert streamed.parts["streaming"] == pytest.approx(4 * 12 * 10**10 / rate, rel=0.02)
    assert streamed.low < streamed.value < streamed.high
    assert seconds(streamed_blocks=BLOCKS, stream_from="disk").value > 10 * streamed.value
    two = seconds(streamed_blocks=BLOCKS, gpus=2)
    assert two.parts["streaming"] == streamed.parts["streaming"] and two.high > 1.5 * streamed.high


def test_measured_rates_of_copies() -> None:
    def link(*kinds: tuple[str, float]) -> HostLink:
        copies = tuple(CopyTiming(kind=kind, bytes=10**8, seconds=seconds, low=0, high=1) for kind, seconds in kinds)
        small = CopyTiming(kind=PINNED, bytes=10, seconds=1.0, low=0, high=1)
        return host_link_of(replace(DEVICES["t4"], measured=replace(GPU, copies=(*copies, small))))

    pinned = link((PINNED, 0.01))
    assert pinned.bandwidth == 10**10 and pinned.source == GPU.source
    assert copy_rates(pinned, "host", 1) == (10**10,) * 3
    assert link((PINNED, 0.01), (PAGEABLE, 0.04)).pageable == pytest.approx(0.25)
    assert copy_rates(link((PINNED, 0.01), (AT_ONCE, 0.02)), "host", 2) == pytest.approx((5e9, 5e9, 5e9))


def test_rates_of_copies() -> None:
    link = host_link_of(DEVICES["rtx4090"])
    assert link.bandwidth == pytest.approx(23.9e9, rel=0.03)
    assert host_link_of(DEVICES["rtx4060"]).bandwidth == pytest.approx(link.bandwidth / 2)  # 8 lanes
    assert host_link_of(DEVICES["gh200-96"]).bandwidth > 4 * link.bandwidth
    high, expected, low = copy_rates(link, "host", 2)
    assert high > expected == link.bandwidth and low == link.bandwidth * link.slowest / 2
    assert copy_rates(link, "disk", 2)[1] == copy_rates(link, "disk", 1)[1] / 2 < 0.1 * link.bandwidth
