"""A list of requests played to a simulated allocator: what was allocated and reserved at most."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from shoestring.estimate.allocator import Allocator, Block, Exhausted, rounded
from shoestring.estimate.expandable import ExpandableAllocator
from shoestring.estimate.requests import STREAMS, Request

Kind = Literal["segments", "expandable"]
_ALLOCATORS: dict[Kind, type[Allocator]] = {"segments": Allocator, "expandable": ExpandableAllocator}


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Bytes; all but `reserved` of the moment when most were allocated."""

    live: Counter[str]
    """In blocks, by part."""
    requested: int
    """Asked for, rounded; blocks are larger where the allocator did not split off the rest."""
    reserved: int
    """The most at any moment."""


def unlimited(asked: Sequence[Request], kind: Kind) -> Usage:
    """The usage on a device without end."""
    return replay(asked, _ALLOCATORS[kind]())


def within(limits: Iterable[int], asked: Sequence[Request], kind: Kind, free: Usage) -> Usage:
    """The usage under the first of the limits that suffices; `free`, the one without any, where none does.

    Close to the limit torch gives unused segments back and tries again; so does the simulation.
    """
    for limit in limits:
        if free.reserved <= limit:
            return free
        # Most questions need no second replay: what is live at once tells that giving back would not help.
        if free.requested <= limit:
            with contextlib.suppress(Exhausted):
                return replay(asked, _ALLOCATORS[kind](limit))
    return free


def replay(asked: Sequence[Request], allocator: Allocator) -> Usage:
    """Every request in order. Raises Exhausted."""
    blocks: dict[object, tuple[Block, int]] = {}
    changes: list[tuple[str, int]] = []
    peak = until = requested = most_requested = 0
    for key, part, size in asked:
        if size is None:
            block, wanted = blocks.pop(key)
            changes.append((part, -block.size))
            requested -= wanted
            allocator.free(block)
            continue
        wanted = rounded(size)
        block = allocator.allocate(size, STREAMS.get(part, ""))
        blocks[key] = block, wanted
        changes.append((part, block.size))
        requested += wanted
        if allocator.allocated > peak:
            peak, until, most_requested = allocator.allocated, len(changes), requested
    live: Counter[str] = Counter()
    for part, change in changes[:until]:
        live[part] += change
    return Usage(live=live, requested=most_requested, reserved=allocator.peak_reserved)
