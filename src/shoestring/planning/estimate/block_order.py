"""The memory of updates with `stream_order=block`, from a trace of the usual order.

Each streamed block runs for all microbatches of a group before the next block is copied. So what the forward of a
microbatch keeps for backward, which are the inputs of its blocks if every block is recomputed, is kept for all of them,
and in backward each has its own gradient between two blocks. What follows the last block, such as the loss, has its
backward directly after its forward: of this only one microbatch keeps anything. Groups that follow the first one begin
with gradients of the parameters. Workspaces of cuBLAS are those of the usual order: training frees them at each turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from shoestring.planning.estimate.lengths import Updates
from shoestring.planning.estimate.requests import accumulate_in_place
from shoestring.planning.trace.record import Alloc, Event, Free, Op, Phase, Storage, Trace

_TRACED = 2
"""The groups of an update that the result has: later ones repeat the second, as traced microbatches do."""


def can_change_order(trace: Trace) -> bool:
    """Return whether the microbatches of such updates may run in the order of the blocks, as far as a trace tells.

    Random numbers would be drawn in another order, and with one microbatch there is no other order. Blocks that run
    several times in a forward, or in several stages of an update, keep the usual order.
    """
    return (
        trace.microbatches > 1
        and trace.stages == 1
        and trace.second is None
        and not trace.draws_random
        and len(trace.block_uses) == len({use.block for use in trace.block_uses}) == len(trace.block_bytes)
    )


def group_sizes(microbatches: int, group: int | None) -> list[int]:
    """Return how many microbatches each group of an update has; a `group` of None has all of them."""
    size = group or microbatches
    return [min(size, microbatches - start) for start in range(0, microbatches, size)]


def lengths_of_groups(updates: Updates, group: int) -> Updates:
    """Return the longest of the microbatches of each group, whose memory all of them have at once."""
    return [[max(lengths[start : start + group]) for start in range(0, len(lengths), group)] for lengths in updates]


def in_block_order(trace: Trace, groups: Sequence[int]) -> Trace:
    """Return the trace with the memory that updates have in this order if their `groups` have so many microbatches.

    Each update has the events of a microbatch for the first group and for the one that follows, with storages for what
    the further microbatches of the group keep meanwhile. The trace is not one of operators any more: time follows from
    the original one.
    """
    trace = accumulate_in_place(trace)
    first_use, last_use = (choose(use.start for use in trace.block_uses) for choose in (min, max))
    storages, events = list(trace.storages), list[Event]()
    for part in _updates(trace.events):
        events += _in_groups(part, storages, groups[:_TRACED], first_use, last_use)
    traced = min(len(groups), trace.microbatches)
    return replace(trace, microbatches=traced, storages=tuple(storages), events=tuple(events))


def _updates(events: Sequence[Event]) -> list[Sequence[Event]]:
    """Divide the events into those before the first update, those of each update, and those after the last."""
    starts = [
        index
        for index, event in enumerate(events)
        if isinstance(event, Phase) and (event.name == "end" or (event.name == "forward" and event.microbatch == 0))
    ]
    return [events[start:end] for start, end in zip([0, *starts], [*starts, len(events)], strict=True)]


def _in_groups(
    events: Sequence[Event], storages: list[Storage], groups: Sequence[int], first_use: int, last_use: int
) -> list[Event]:
    """Return the events of an update with as many of its microbatches as there are `groups`, in each of which the
    further ones keep what they need while that one runs.

    `first_use` and `last_use` are the numbers of operators of the forward before the first block and before the last.
    """
    starts = [index for index, event in enumerate(events) if isinstance(event, Phase) and event.name == "forward"]
    step = next((index for index, event in enumerate(events) if _begins_step(event)), len(events))
    if not starts:
        return [*events]
    result = [*events[: starts[0]]]
    for size, start, end in zip(groups, starts, [*starts[1:], step], strict=False):
        result += _of_group(events[start:end], storages, size - 1, first_use, last_use)
    omitted = events[starts[len(groups)] : step] if len(groups) < len(starts) else ()
    dropped = {event.storage for event in omitted if isinstance(event, Alloc)}
    later = [event for event in omitted if isinstance(event, Free)]
    result += [
        event for event in (*later, *events[step:]) if not (isinstance(event, Free) and event.storage in dropped)
    ]
    return result


def _begins_step(event: Event) -> bool:
    return isinstance(event, Phase) and event.name not in ("forward", "backward")


def _of_group(
    events: Sequence[Event], storages: list[Storage], further: int, first_use: int, last_use: int
) -> list[Event]:
    """Return the events of a microbatch with those of what `further` ones keep meanwhile."""
    backward = next(
        index for index, event in enumerate(events) if isinstance(event, Phase) and event.name == "backward"
    )
    forward = events[:backward]
    gradient = max((storages[storage].bytes for storage in _saved(forward, first_use, last_use)), default=0)
    copies: dict[int, list[int]] = {}
    for storage in _saved(forward, 0, last_use):
        copies[storage] = [*range(len(storages), len(storages) + further)]
        storages += [storages[storage]] * further
    gradients = [*range(len(storages), len(storages) + further)]
    storages += [Storage(gradient, "temporaries")] * further

    result: list[Event] = []
    for index, event in enumerate(events):
        result.append(event)
        if isinstance(event, Alloc):
            result += map(Alloc, copies.get(event.storage, ()))
        elif isinstance(event, Free):
            result += map(Free, copies.pop(event.storage, ()))
        elif index == backward:
            result += map(Alloc, gradients)
    result += map(Free, chain(*copies.values(), gradients))
    return result


def _saved(forward: Sequence[Event], start: int, end: int) -> list[int]:
    """Return the storages of operators from `start` to before `end` that are alive after the forward."""
    operators, alive = 0, dict[int, None]()
    for event in forward:
        if isinstance(event, Op):
            operators += 1
        elif isinstance(event, Alloc) and start <= operators < end:
            alive[event.storage] = None
        elif isinstance(event, Free):
            alive.pop(event.storage, None)
    return list(alive)
