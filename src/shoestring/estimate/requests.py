"""What a trace's updates ask of the allocator, one request after another."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from shoestring.hardware.catalog import Device
from shoestring.trace.record import Alloc, Free, Op, Phase, Trace
from shoestring.units import MIB

WORKSPACES = "cuBLAS workspaces"

_WORKSPACE_BYTES = 8 * MIB + 128 * 1024
_WORKSPACE_BYTES_HOPPER = 32 * MIB
"""Per thread that multiplies matrices: torch's `aten/src/ATen/cuda/CublasHandlePool.cpp`."""

STREAMS = {"all-gather buffers": "copy-in"}
"""Parts that FSDP2 allocates on a stream of its own, so that no other part takes their blocks."""

_PRODUCTS = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::addbmm", "aten::mv", "aten::addmv"}

_REPEATED_UPDATES = 2
"""The updates after the traced ones ask for the same, but of segments cut up by what came before."""


class Request(NamedTuple):
    """Bytes asked for (None: given back) under a key, for a part."""

    key: object
    part: str
    bytes: int | None


OF_A_BATCH = {"activations", "batch", "reserve space", "KV cache", "temporaries"}
"""Parts that are smaller where a batch is."""


def requests(trace: Trace, device: Device, *, first_share: float = 1.0) -> list[Request]:
    """The requests of a trace; of one that `settled` gave, if they are to be those of a longer run.

    `first_share` is the first batch's size as a share of the others'.
    """
    return list(_requests(trace, device, first_share))


def settled(trace: Trace) -> Trace:
    """The trace's updates as the engine makes them, and two more of the second's kind."""
    return steady(added_in_place(trace))


def added_in_place(trace: Trace) -> Trace:
    """The trace with gradients that meet in backward added into one of the two.

    Autograd's engine does so where it holds the last reference (`torch/csrc/autograd/input_buffer.cpp`), but not for
    tensors that a mode watches: what is recorded is a third tensor, after which at least one of the two dies.
    """
    same: dict[int, int] = {}
    left_out: set[int] = set()
    backward = False
    events = trace.events
    for place, event in enumerate(events):
        if isinstance(event, Phase):
            backward = event.name == "backward"
        elif backward and isinstance(event, Op) and event.name == "aten::add.Tensor":
            made = events[place - 1]
            dying = _first_alike(trace, made.storage, place + 1) if isinstance(made, Alloc) else None
            if isinstance(made, Alloc) and dying is not None:
                freed = events[dying]
                assert isinstance(freed, Free)
                same[made.storage] = same.get(freed.storage, freed.storage)
                left_out |= {place - 1, dying}
    kept = (event for place, event in enumerate(events) if place not in left_out)
    renamed = (Free(same.get(event.storage, event.storage)) if isinstance(event, Free) else event for event in kept)
    return dataclasses.replace(trace, events=tuple(renamed))


def steady(trace: Trace, times: int = _REPEATED_UPDATES) -> Trace:
    """The trace with its second update repeated.

    What the second update frees of the first's (kept outputs, gradients cleared late), a repetition frees of the
    update before it: the storage of the same bytes and part that was left over, in order of birth.
    """
    began = next((n for n, e in enumerate(trace.events) if isinstance(e, Phase) and e.update == 1), None)
    if began is None or not isinstance(phase := trace.events[began], Phase) or phase.name == "end":
        return trace
    body = trace.events[began:]
    born = {event.storage for event in body if isinstance(event, Alloc)}
    freed = {event.storage for event in body if isinstance(event, Free)}
    left_over: dict[tuple[int, str], list[int]] = defaultdict(list)
    for storage in sorted(born - freed, reverse=True):
        left_over[_kind(trace, storage)].append(storage)
    successor = {old: same.pop() for old in sorted(freed - born) if (same := left_over[_kind(trace, old)])}

    storages, events = list(trace.storages), list(trace.events)
    previous = {storage: storage for storage in born}
    for _ in range(times):
        own = {}
        for event in body:
            match event:
                case Alloc(storage):
                    own[storage] = len(storages)
                    storages.append(trace.storages[storage])
                    events.append(Alloc(own[storage]))
                case Free(storage) if storage in own:
                    events.append(Free(own[storage]))
                case Free(storage):
                    if storage in successor:
                        events.append(Free(previous[successor[storage]]))
                case _:
                    events.append(event)
        previous = own
    return dataclasses.replace(trace, storages=tuple(storages), events=tuple(events))


def _requests(trace: Trace, device: Device, first_share: float) -> Iterator[Request]:
    """The storages in order, each thread's workspace before its first product."""
    workspace = _WORKSPACE_BYTES_HOPPER if device.compute_capability == (9, 0) else _WORKSPACE_BYTES
    thread = ""
    share_of_batch = 1.0
    with_workspace: set[str] = set()
    for event in trace.events:
        match event:
            case Alloc(index):
                storage = trace.storages[index]
                share = share_of_batch if storage.part in OF_A_BATCH else 1.0
                yield Request(index, storage.part, int(storage.bytes * share) or 1)
            case Free(index):
                yield Request(index, trace.storages[index].part, None)
            case Phase(name, update):
                share_of_batch = first_share if update == 0 else 1.0
                # Backward runs in a thread of its own.
                thread = "backward" if name == "backward" else "forward"
            case Op(name) if name in _PRODUCTS and thread not in with_workspace:
                with_workspace.add(thread)
                yield Request((WORKSPACES, thread), WORKSPACES, workspace)


def _first_alike(trace: Trace, made: int, place: int) -> int | None:
    """Where, of the frees that follow each other from `place` on, another storage of the bytes of `made` ends."""
    for number in range(place, len(trace.events)):
        event = trace.events[number]
        if not isinstance(event, Free):
            return None
        if event.storage != made and trace.storages[event.storage].bytes == trace.storages[made].bytes:
            return number
    return None


def _kind(trace: Trace, storage: int) -> tuple[int, str]:
    known = trace.storages[storage]
    return known.bytes, known.part
