"""Replay a list of requests on a simulated allocator and return its peak usage."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from shoestring.planning.estimate.allocator import Allocator, Block, OutOfMemory, round_up
from shoestring.planning.estimate.expandable import ExpandableAllocator
from shoestring.planning.estimate.requests import CONVOLUTION_WORKSPACES, END_OF_LOADING, Request

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


def replay_unlimited(requests: Sequence[Request], kind: Kind) -> Usage:
    """Return the usage on a device of unlimited memory."""
    return replay(requests, _ALLOCATORS[kind]())


def replay_within(limits: Iterable[int], requests: Sequence[Request], kind: Kind, unlimited: Usage) -> Usage:
    """Return the usage under the first limit that suffices, or `unlimited`, the usage without one, if none does.

    Near the limit the simulation releases unused segments and retries, as torch does.
    """
    for limit in limits:
        if unlimited.reserved <= limit:
            return unlimited
        # If the live bytes alone exceed the limit, releasing segments cannot help, so the second replay is skipped.
        if unlimited.requested <= limit:
            with contextlib.suppress(OutOfMemory):
                return replay(requests, _ALLOCATORS[kind](limit))
    return unlimited


def replay_limited(limit: int, requests: Sequence[Request], kind: Kind) -> Usage | None:
    """Return the usage on a device of `limit` bytes; None if its memory does not suffice."""
    try:
        return replay(requests, _ALLOCATORS[kind](limit))
    except OutOfMemory:
        return None


def replay(requests: Sequence[Request], allocator: Allocator) -> Usage:
    """Replay every request in order and return the usage. Raises OutOfMemory.

    A workspace of a convolution that does not fit is left out, since cuDNN then runs a kernel with a smaller one
    (`try_configs` in torch's `aten/src/ATen/native/cudnn/Conv_v8.cpp`).
    """
    blocks: dict[object, tuple[Block, int]] = {}
    changes: list[tuple[str, int]] = []
    peak = changes_at_peak = requested = requested_at_peak = 0
    # Segments before the address `boundary` were reserved while the model was loaded; `used` counts their bytes in use.
    boundary: float = math.inf
    used = used_at_peak = reserved_by_loading = peak_of_loading = 0
    for key, part, size, stream in requests:
        if size is None:
            entry = blocks.pop(key, None)
            if entry is None:  # a workspace that was left out, or the end of loading
                if key == END_OF_LOADING:
                    boundary = allocator.end
                    reserved_by_loading, peak_of_loading = allocator.reserved, allocator.peak_reserved
                continue
            block, rounded_size = entry
            changes.append((part, -block.size))
            requested -= rounded_size
            if block.address < boundary:
                used -= block.size
            allocator.free(block)
            continue
        rounded_size = round_up(size)
        try:
            block = allocator.allocate(size, stream)
        except OutOfMemory:
            if part == CONVOLUTION_WORKSPACES:
                continue
            raise
        blocks[key] = block, rounded_size
        changes.append((part, block.size))
        requested += rounded_size
        if block.address < boundary:
            used += block.size
        # The parts are those at the peak of tensors, which people can change; reserved memory peaks at another time.
        if allocator.allocated > peak:
            peak, changes_at_peak, requested_at_peak = allocator.allocated, len(changes), requested
            used_at_peak = used
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
