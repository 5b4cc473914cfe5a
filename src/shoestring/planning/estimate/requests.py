"""Convert a trace to a sequence of requests to the allocator."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from shoestring.hardware import cublas
from shoestring.hardware.catalog import Device
from shoestring.planning.estimate.kernel_buffers import buffer_bytes
from shoestring.planning.estimate.workspaces import CONVOLUTIONS, transposed_bytes
from shoestring.planning.trace.record import Alloc, Event, Free, Op, Phase, Repeat, Trace

WORKSPACES = "cuBLAS workspaces"
CONVOLUTION_WORKSPACES = "convolution workspaces"
KERNEL_BUFFERS = "temporaries"
"""The part of buffers that kernels have while they run."""

_FSDP_STREAMS = {"all-gather buffers": "copy-in", "gradients": "reduce-scatter"}
"""Parts that FSDP2 allocates on separate streams, so that no other part can use their blocks
(`all_gather_copy_in_stream` in `torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py`, and `reduce_scatter_stream`
in `foreach_reduce` of `_fsdp_collectives.py`)."""

# Operators that ask for cuBLAS's handle, with which torch allocates its workspace (`getCurrentCUDABlasHandle`).
_PRODUCTS = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::addbmm", "aten::mv", "aten::addmv"}

_WITH_BIAS = "aten::addmm"
"""The product that cuBLASLt computes (`addmm_out_cuda_impl` in `aten/src/ATen/native/cuda/Blas.cpp`)."""

_REPEATED_UPDATES = 2
"""The number of further updates to replay: their requests are the same, but previous ones have split the segments."""


class Request(NamedTuple):
    """A request for bytes (None: to free them), identified by a key, for a part.

    The beginning of a phase is in the list too, as a key that frees nothing.
    """

    key: object
    part: str
    bytes: int | None
    stream: str = ""
    """The stream whose blocks it uses."""


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
    threads_with_lt_workspace: set[str] = set()
    lt_workspace = cublas.separate_lt_bytes()
    streams = _FSDP_STREAMS if any(s.part == "all-gather buffers" for s in storages) else {}
    for event in trace.events:  # hundreds of thousands: `isinstance` takes a quarter of the time of `match`
        if isinstance(event, Alloc):
            storage = storages[event.storage]
            # A tensor without elements gets no block in torch. Here it gets the smallest one, so that it can be freed.
            stream = streams.get(storage.part, "")
            result.append(Request(event.storage, storage.part, storage.bytes or 1, stream))
        elif isinstance(event, Free):
            result.append(Request(event.storage, storages[event.storage].part, None))
        elif isinstance(event, Phase):
            result.append(Request(event, "", None))
            if loads and event.name != "model":
                result.append(Request(END_OF_LOADING, "", None))
            loads = event.name == "model"
            # Autograd runs backward in a thread of its own for each device (`torch/csrc/autograd/engine.cpp`), and a
            # handle of cuBLAS with its workspace belongs to a thread (`CublasHandlePool.cpp`).
            thread = "backward" if event.name == "backward" else "forward"
        elif isinstance(event, Repeat):
            continue
        elif event.buffers:
            sizes = buffer_bytes(event.buffers, device, deterministic=deterministic)
            keys = [(KERNEL_BUFFERS, len(result) + number) for number in range(len(sizes))]
            result += [Request(key, KERNEL_BUFFERS, size) for key, size in zip(keys, sizes, strict=True)]
            result += [Request(key, KERNEL_BUFFERS, None) for key in reversed(keys)]
        elif event.name in _PRODUCTS:
            if thread not in threads_with_workspace:
                threads_with_workspace.add(thread)
                result.append(Request((WORKSPACES, thread), WORKSPACES, workspace))
            if event.name == _WITH_BIAS and lt_workspace and thread not in threads_with_lt_workspace:
                threads_with_lt_workspace.add(thread)
                result.append(Request((WORKSPACES, thread, "Lt"), WORKSPACES, lt_workspace))
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
        if isinstance(event, Phase) and (event.update, event.microbatch) > (0, 0):
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
    """Return the trace without the storages of results that the target writes into an operand.

    The result has the operand's storage instead. Autograd's engine adds gradients in place if it alone holds one
    (`torch/csrc/autograd/input_buffer.cpp`), but not under a dispatch mode.
    """
    in_place_storage: dict[int, int] = {}
    removed: set[int] = set()
    events = trace.events
    for index, event in enumerate(events):
        if isinstance(event, Op) and event.in_place:
            free = events[index + 1]
            assert isinstance(free, Free)
            place = _allocation_of_result(events, index)
            allocation = events[place]
            assert isinstance(allocation, Alloc)
            in_place_storage[allocation.storage] = in_place_storage.get(free.storage, free.storage)
            removed |= {place, index + 1}

    def without_results(event: Event) -> Event:
        if isinstance(event, Free):
            return Free(in_place_storage.get(event.storage, event.storage))
        return dataclasses.replace(event, in_place=False) if isinstance(event, Op) and event.in_place else event

    remaining = (without_results(event) for index, event in enumerate(events) if index not in removed)
    return dataclasses.replace(trace, events=tuple(remaining))


def _allocation_of_result(events: Sequence[Event], index: int) -> int:
    """Return the place of the last allocation before the operator at `index` that is not of its own memory."""
    freed = set()
    for place in range(index - 1, -1, -1):
        event = events[place]
        if isinstance(event, Free):
            freed.add(event.storage)
        elif isinstance(event, Alloc) and event.storage not in freed:
            return place
    raise AssertionError("an operator in place has no result")


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


def _bytes_and_part(trace: Trace, index: int) -> tuple[int, str]:
    storage = trace.storages[index]
    return storage.bytes, storage.part
