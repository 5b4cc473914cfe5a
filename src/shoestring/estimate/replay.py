"""Replay a list of requests on a simulated allocator and return its peak usage."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from shoestring.estimate.allocator import Allocator, Block, OutOfMemory, round_up
from shoestring.estimate.expandable import ExpandableAllocator
from shoestring.estimate.requests import STREAMS, Request

Kind = Literal["segments", "expandable"]
_ALLOCATORS: dict[Kind, type[Allocator]] = {"segments": Allocator, "expandable": ExpandableAllocator}


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Usage in bytes at the time of the peak of allocated memory; `reserved` has its own peak."""

    live: Counter[str]
    """Bytes of blocks by part."""
    requested: int
    """Requested bytes, rounded; blocks are larger if the allocator did not split off the remainder."""
    reserved: int
    """The peak of reserved bytes."""
    loading: int
    """The peak of reserved bytes while the model is loaded."""
    left_by_loading: int
    """Bytes that no tensor uses in segments that were reserved while the model was loaded. In an expandable segment
    they do not count, because any later tensor fits them."""


def replay_unlimited(requests: Sequence[Request], kind: Kind, loading: int = 0) -> Usage:
    """Return the usage on a device of unlimited memory; the first `loading` requests load the model."""
    return replay(requests, _ALLOCATORS[kind](), loading)


def replay_within(
    limits: Iterable[int], requests: Sequence[Request], kind: Kind, unlimited: Usage, loading: int = 0
) -> Usage:
    """Return the usage under the first limit that suffices, or `unlimited`, the usage without one, if none does.

    Near the limit the simulation releases unused segments and retries, as torch does.
    """
    for limit in limits:
        if unlimited.reserved <= limit:
            return unlimited
        # If the live bytes alone exceed the limit, releasing segments cannot help, so the second replay is skipped.
        if unlimited.requested <= limit:
            with contextlib.suppress(OutOfMemory):
                return replay(requests, _ALLOCATORS[kind](limit), loading)
    return unlimited


def replay(requests: Sequence[Request], allocator: Allocator, loading: int = 0) -> Usage:
    """Replay every request in order and return the usage; the first `loading` requests load the model.

    Raises OutOfMemory.
    """
    blocks: dict[object, tuple[Block, int]] = {}
    changes: list[tuple[str, int]] = []
    peak = changes_at_peak = requested = requested_at_peak = 0
    # The bytes used in segments that were reserved while the model was loaded: those before `boundary`.
    used = used_at_peak = 0
    boundary: float = math.inf
    reserved_by_loading = peak_of_loading = 0
    for loads, group in ((True, requests[:loading]), (False, requests[loading:])):
        for key, part, size in group:
            if size is None:
                block, rounded_size = blocks.pop(key)
                changes.append((part, -block.size))
                requested -= rounded_size
                if block.address < boundary:
                    used -= block.size
                allocator.free(block)
                continue
            rounded_size = round_up(size)
            block = allocator.allocate(size, STREAMS.get(part, ""))
            blocks[key] = block, rounded_size
            changes.append((part, block.size))
            requested += rounded_size
            if block.address < boundary:
                used += block.size
            if allocator.allocated > peak:
                peak, changes_at_peak, requested_at_peak = allocator.allocated, len(changes), requested
                used_at_peak = used
        if loads:
            boundary, reserved_by_loading, peak_of_loading = allocator.end, allocator.reserved, allocator.peak_reserved
    live: Counter[str] = Counter()
    for part, change in changes[:changes_at_peak]:
        live[part] += change
    return Usage(
        live=live,
        requested=requested_at_peak,
        reserved=allocator.peak_reserved,
        loading=peak_of_loading,
        left_by_loading=max(0, reserved_by_loading - used_at_peak),
    )
