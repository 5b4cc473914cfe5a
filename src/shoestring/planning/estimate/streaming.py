"""Seconds and bytes of streamed blocks: the copies of frozen weights to the device that computation does not hide.

Which copies there are, and when each may begin, is what training does (`techniques/streaming/schedule.py`). A copy
begins when the one before it is over and the device no longer computes with what its slot has; a block begins when its
copy is over. Forward and backward are taken to be divided among the blocks in the same shares. With
`stream_order=block` the microbatches of a group use each copy, one after the other, before the next block begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from shoestring.planning.trace.record import Trace
from shoestring.techniques.streaming.schedule import SLOTS, Pass, SlotContents, copies, streamed_positions

MICROBATCHES = 3
"""The first one, or the first ones that use the same copies, begin with empty slots; the third repeat the second."""


def streamed_sizes(block_bytes: Sequence[int], count: int) -> list[int]:
    """Return the bytes of each of `count` streamed blocks, of those that can be streamed, in their order."""
    return [block_bytes[position] for position in streamed_positions(len(block_bytes), count)]


def host_bytes(trace: Trace, count: int | None) -> int:
    """Return the bytes of `count` streamed blocks, which are in host memory or on the disk for each process."""
    return sum(streamed_sizes(trace.bytes_of_all_blocks, count or 0))


def saved_bytes(block_bytes: Sequence[int], count: int) -> int:
    """Return the device's memory that `count` streamed blocks save: their weights, without the slots."""
    sizes = streamed_sizes(block_bytes, count)
    slots = min(SLOTS, count)
    return sum(sizes) - sum(max(sizes[slot::slots]) for slot in range(slots))


class Use(NamedTuple):
    """What the device computes from one use of a streamed block on, until the next one."""

    block: int
    pass_: Pass
    before: float
    """Seconds of computation between the use before this one and it."""
    seconds: float
    """Seconds of the use itself."""


@dataclass(frozen=True)
class Pace:
    """When a microbatch computes what, without waiting for copies."""

    ends: tuple[float, ...]
    """The seconds from the beginning of the forward to the end of each of its operators."""
    forward: float
    backward: float


def uses_of_microbatch(trace: Trace, count: int, pace: Pace) -> tuple[list[Use], float]:
    """Return the uses of `count` streamed blocks in a microbatch, and the seconds of computation after the last one."""
    numbers = {position: number for number, position in enumerate(streamed_positions(len(trace.block_bytes), count))}
    seconds = (0.0, *pace.ends)
    total, last = seconds[-1] or 1.0, len(seconds) - 1
    forward = [
        (numbers[use.block], seconds[min(use.start, last)] / total, seconds[min(use.end, last)] / total)
        for use in trace.block_uses
        if use.block in numbers
    ]
    # Of several forwards of a block, such as one with adapters switched off, backward follows the last.
    latest = {number: index for index, (number, _, _) in enumerate(forward)}
    spans: list[tuple[int, Pass, float, float]] = [
        (number, "forward" if latest[number] == index else "inference", pace.forward * start, pace.forward * end)
        for index, (number, start, end) in enumerate(forward)
    ]
    length = pace.forward + pace.backward
    for number, index in sorted(latest.items(), key=lambda item: -item[1]):
        _, start, end = forward[index]
        spans.append((number, "backward", length - pace.backward * end, length - pace.backward * start))
    uses, clock = [], 0.0
    for number, pass_, start, end in spans:
        uses.append(Use(number, pass_, max(0.0, start - clock), end - start))
        clock = max(clock, end)
    return uses, max(0.0, length - clock)


def shared_uses(uses: Sequence[Use], after: float, microbatches: float) -> tuple[list[Use], float]:
    """Return the uses of blocks by several microbatches, which run each block one after the other before the next one,
    and the seconds after the last use: the arguments are those of one microbatch.

    A use lasts until the last microbatch no longer needs the block. What a microbatch computes between two blocks it
    computes before it leaves its turn to the next one, so that of all others belongs to the use: in forward what
    follows the block, in backward what comes before it.
    """
    further = microbatches - 1
    shared = []
    for index, use in enumerate(uses):
        following = uses[index + 1] if index + 1 < len(uses) else None
        if use.pass_ == "backward":
            meanwhile = use.before
        else:
            meanwhile = following.before if following and following.pass_ != "backward" else 0.0
        before = use.before * (microbatches if index == 0 else 1)
        shared.append(use._replace(before=before, seconds=microbatches * use.seconds + further * meanwhile))
    return shared, microbatches * after


def waiting_seconds(
    trace: Trace, count: int | None, pace: Pace, rate: float, latency: float, *, sharing: float = 1.0
) -> float:
    """Return the seconds of a microbatch, one that follows others, in which the device waits for copies of `count`
    streamed blocks: at `rate` bytes/s, with `latency` seconds before each.

    If several microbatches are `sharing` each copy, the seconds are those of all of them.
    """
    if not count or not trace.block_uses:
        return 0.0
    uses, after = shared_uses(*uses_of_microbatch(trace, count, pace), sharing)
    return _waiting_seconds(uses, after, streamed_sizes(trace.block_bytes, count), rate, latency)


def _waiting_seconds(uses: Sequence[Use], after: float, sizes: Sequence[int], rate: float, latency: float) -> float:
    repeated = [*uses] * MICROBATCHES
    started: dict[tuple[int, bool], list[int]] = {}
    for copy in copies([(use.block, use.pass_) for use in repeated], SlotContents(len(sizes), SLOTS)):
        started.setdefault((copy.use, copy.at_end), []).append(copy.block)
    clock = copying = waiting = 0.0
    arrival = dict.fromkeys(range(len(sizes)), 0.0)

    def start(key: tuple[int, bool]) -> None:
        nonlocal copying
        for block in started.get(key, ()):
            copying = max(copying, clock) + latency + sizes[block] / rate
            arrival[block] = copying

    for index, use in enumerate(repeated):
        if index and index % len(uses) == 0:
            clock += after
            if index == (MICROBATCHES - 1) * len(uses):
                waiting = 0.0
        clock += use.before
        start((index, False))
        waiting += max(0.0, arrival[use.block] - clock)
        clock = max(clock, arrival[use.block]) + use.seconds
        start((index, True))
    return waiting
