"""Convert a trace to a sequence of requests to the allocator."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from shoestring.hardware import cublas
from shoestring.hardware.catalog import Device
from shoestring.planning.estimate.workspaces import CONVOLUTIONS, transposed_bytes
from shoestring.planning.trace.record import Alloc, Free, Op, Phase, Repeat, Trace

WORKSPACES = "cuBLAS workspaces"
CONVOLUTION_WORKSPACES = "convolution workspaces"

STREAMS = {"all-gather buffers": "copy-in"}
"""Parts that FSDP2 allocates on a separate stream, so that no other part can use their blocks
(`all_gather_copy_in_stream` in `torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py`)."""

# Operators that ask for cuBLAS's handle, with which torch allocates its workspace (`getCurrentCUDABlasHandle`).
_PRODUCTS = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::addbmm", "aten::mv", "aten::addmv"}

_REPEATED_UPDATES = 2
"""The number of further updates to replay: their requests are the same, but previous ones have split the segments."""


class Request(NamedTuple):
    """A request for bytes (None: to free them), identified by a key, for a part."""

    key: object
    part: str
    bytes: int | None


END_OF_LOADING = "end of loading"
"""The key of a request that frees nothing: later ones belong to updates."""

BATCH_PARTS = {"activations", "batch", "reserve space", "KV cache", "temporaries"}
"""Parts whose size depends on the size of the batch."""


def requests(
    trace: Trace, device: Device, *, convolution_workspaces: bool = False, deterministic: bool = True
) -> list[Request]:
    """Return the requests of a trace; for the peak of a longer run, of one that `repeat_second_update` returned.

    With `convolution_workspaces`, convolutions request the largest workspaces that are usual (`workspaces.py`).
    `deterministic`: cuBLAS has the workspaces that training sets, otherwise those that torch sets.
    """
    assert device.compute_capability is not None
    config = cublas.TRAINING_CONFIG if deterministic else cublas.default_config(device.compute_capability)
    workspace = cublas.workspace_bytes(config)
    storages, result = trace.storages, list[Request]()
    loads, thread = False, ""
    threads_with_workspace: set[str] = set()
    for event in trace.events:  # hundreds of thousands: `isinstance` takes a quarter of the time of `match`
        if isinstance(event, Alloc):
            storage = storages[event.storage]
            # A tensor without elements gets no block in torch. Here it gets the smallest one, so that it can be freed.
            result.append(Request(event.storage, storage.part, storage.bytes or 1))
        elif isinstance(event, Free):
            result.append(Request(event.storage, storages[event.storage].part, None))
        elif isinstance(event, Phase):
            if loads and event.name != "model":
                result.append(Request(END_OF_LOADING, "", None))
            loads = event.name == "model"
            # Autograd runs backward in a thread of its own for each device (`torch/csrc/autograd/engine.cpp`), and a
            # handle of cuBLAS with its workspace belongs to a thread (`CublasHandlePool.cpp`).
            thread = "backward" if event.name == "backward" else "forward"
        elif isinstance(event, Repeat):
            continue
        elif thread not in threads_with_workspace and event.name in _PRODUCTS:
            threads_with_workspace.add(thread)
            result.append(Request((WORKSPACES, thread), WORKSPACES, workspace))
        elif (
            convolution_workspaces
            and event.name in CONVOLUTIONS
            and (size := transposed_bytes(event, device.compute_capability))
        ):
            key = (CONVOLUTION_WORKSPACES, len(result))
            result += [Request(key, CONVOLUTION_WORKSPACES, size), Request(key, CONVOLUTION_WORKSPACES, None)]
    return result


def with_smaller_first_batch(all_requests: Sequence[Request], trace: Trace, share: float) -> Sequence[Request]:
    """Return the requests of the trace if its first batch had only a `share` of the size of the others."""
    if share == 1:
        return all_requests
    of_first_batch = set()
    for event in trace.events:
        if isinstance(event, Phase) and event.update > 0:
            break
        if isinstance(event, Alloc) and trace.storages[event.storage].part in BATCH_PARTS:
            of_first_batch.add(event.storage)
    return [
        request._replace(bytes=int(request.bytes * share) or 1)
        if request.bytes is not None and request.key in of_first_batch
        else request
        for request in all_requests
    ]


def accumulate_in_place(trace: Trace) -> Trace:
    """Return the trace with sums of gradients in backward computed in place, in one of the two operands.

    Autograd's engine does so if it holds the last reference (`torch/csrc/autograd/input_buffer.cpp`), but not under a
    dispatch mode: then the trace has a third tensor for the sum, after which at least one of the two operands is freed.
    """
    in_place_storage: dict[int, int] = {}
    removed: set[int] = set()
    in_backward = False
    events = trace.events
    for index, event in enumerate(events):
        if isinstance(event, Phase):
            in_backward = event.name == "backward"
        elif in_backward and isinstance(event, Op) and event.name == "aten::add.Tensor":
            allocation = events[index - 1]
            free_index = _find_free(trace, allocation.storage, index + 1) if isinstance(allocation, Alloc) else None
            if isinstance(allocation, Alloc) and free_index is not None:
                free = events[free_index]
                assert isinstance(free, Free)
                in_place_storage[allocation.storage] = in_place_storage.get(free.storage, free.storage)
                removed |= {index - 1, free_index}
    remaining = (event for index, event in enumerate(events) if index not in removed)
    renamed = (
        Free(in_place_storage.get(event.storage, event.storage)) if isinstance(event, Free) else event
        for event in remaining
    )
    return dataclasses.replace(trace, events=tuple(renamed))


def repeat_second_update(trace: Trace, times: int = _REPEATED_UPDATES) -> Trace:
    """Return the trace with its second update repeated `times` times.

    Where the second update frees a storage of the first (saved outputs, gradients cleared late), a repetition frees the
    corresponding storage of the previous update: of the same bytes and part, in order of allocation.
    """
    start = next((n for n, e in enumerate(trace.events) if isinstance(e, Phase) and e.update == 1), None)
    if start is None or not isinstance(phase := trace.events[start], Phase) or phase.name == "end":
        return trace
    second_update = trace.events[start:]
    allocated = {event.storage for event in second_update if isinstance(event, Alloc)}
    freed = {event.storage for event in second_update if isinstance(event, Free)}
    unfreed: dict[tuple[int, str], list[int]] = defaultdict(list)
    for storage in sorted(allocated - freed, reverse=True):
        unfreed[_bytes_and_part(trace, storage)].append(storage)
    successor = {
        old: candidates.pop()
        for old in sorted(freed - allocated)
        if (candidates := unfreed[_bytes_and_part(trace, old)])
    }

    storages, events = list(trace.storages), list(trace.events)
    previous_indices = {storage: storage for storage in allocated}
    for _ in range(times):
        indices = {}
        for event in second_update:
            match event:
                case Alloc(storage):
                    indices[storage] = len(storages)
                    storages.append(trace.storages[storage])
                    events.append(Alloc(indices[storage]))
                case Free(storage) if storage in indices:
                    events.append(Free(indices[storage]))
                case Free(storage):
                    if storage in successor:
                        events.append(Free(previous_indices[successor[storage]]))
                case _:
                    events.append(event)
        previous_indices = indices
    return dataclasses.replace(trace, storages=tuple(storages), events=tuple(events))


def _find_free(trace: Trace, storage: int, start: int) -> int | None:
    """Return the index of the first event that frees another storage of the same bytes.

    Only the uninterrupted frees from index `start` on are searched.
    """
    for index in range(start, len(trace.events)):
        event = trace.events[index]
        if not isinstance(event, Free):
            return None
        if event.storage != storage and trace.storages[event.storage].bytes == trace.storages[storage].bytes:
            return index
    return None


def _bytes_and_part(trace: Trace, index: int) -> tuple[int, str]:
    storage = trace.storages[index]
    return storage.bytes, storage.part
