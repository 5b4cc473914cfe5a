"""Peak memory of training as parts that sum, from a trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from shoestring.estimate.allocator import Allocator, Block, Exhausted
from shoestring.hardware.catalog import Device
from shoestring.trace.record import PARTS, Alloc, Free, Op, Phase, Trace
from shoestring.units import MIB

WORKSPACES = "cuBLAS workspaces"

_WORKSPACE_BYTES = 8 * MIB + 128 * 1024
_WORKSPACE_BYTES_HOPPER = 32 * MIB
"""Per thread that multiplies matrices: torch's `aten/src/ATen/cuda/CublasHandlePool.cpp`."""

_PRODUCTS = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::addbmm", "aten::mv", "aten::addmv"}

_SOURCES = {
    "weights": "the model's parameters",
    "buffers": "the model's buffers",
    "gradients": "kept from backward to the optimizer's step",
    "optimizer states": "made in the first step",
    "batch": "one microbatch as recipe.batch gives it",
    "activations": "made in forward and kept for backward, casts of weights by autocast among them",
    "reserve space": "a model of what cuDNN keeps of recurrent layers; not measured",
    "temporaries": "operators' results alive at the peak that are none of the others",
    WORKSPACES: "8.125 MiB for each thread that multiplies matrices, 32 MiB on capability 9.0 (CublasHandlePool.cpp)",
    "allocator slack": "segments reserved above live blocks, by a simulation of torch's caching allocator",
    "CUDA context": "typical for the device; outside of torch's allocator",
    "process": "resident bytes of Python with torch and the recipe's data, measured",
}

_RESERVE_DOUBT = 0.5
_CPU_DOUBT = 1.0
_PROCESS_DOUBT = 0.15


@dataclass(frozen=True, kw_only=True)
class MemoryPart:
    """One named part of a breakdown, in bytes, and where the number is from."""

    name: str
    bytes: int
    source: str


@dataclass(frozen=True, kw_only=True)
class Breakdown:
    """Peak memory in bytes; the parts are those of the moment of the peak."""

    parts: tuple[MemoryPart, ...]
    low_bytes: int
    high_bytes: int
    capacity_bytes: int

    @property
    def peak_bytes(self) -> int:
        return sum(part.bytes for part in self.parts)

    @property
    def fits(self) -> bool:
        """Even the high end fits."""
        return self.high_bytes <= self.capacity_bytes

    def json(self) -> dict[str, Any]:
        return {
            "peak_bytes": self.peak_bytes,
            "low_bytes": self.low_bytes,
            "high_bytes": self.high_bytes,
            "capacity_bytes": self.capacity_bytes,
            "fits": self.fits,
            "parts": [asdict(part) for part in self.parts],
        }


def memory(trace: Trace, device: Device) -> Breakdown:
    """What the traced updates take on `device`.

    On a GPU the low end has the smallest CUDA context, no slack in the allocator, and half of the modelled reserve
    space; the high end has the largest context, the slack, half as much again of the reserve space, and a cuDNN
    workspace as large as the operands of the largest convolution. These last two are assumptions.

    On a CPU blocks are not rounded; the high end adds as much again as the tensors for kernels' buffers and the C
    library's own slack, and 15% of the process for what is imported while it trains: assumptions too.
    """
    return _on_cpu(trace, device) if device.compute_capability is None else _on_gpu(trace, device)


def _on_gpu(trace: Trace, device: Device) -> Breakdown:
    context_low, context, context_high = device.context_bytes
    convolutions = (event.bytes for event in trace.events if isinstance(event, Op) and "convolution" in event.name)
    doubt = max(convolutions, default=0)
    requests = list(_requests(trace, device))
    try:
        # Close to the limit torch gives unused segments back and tries again; so does the simulation.
        live, reserved = _replay(requests, Allocator(device.memory_bytes - context_high - doubt))
    except Exhausted:
        live, reserved = _replay(requests, Allocator())
    slack = reserved - live.total()
    reserve_doubt = round(live["reserve space"] * _RESERVE_DOUBT)
    peak = reserved + context
    return Breakdown(
        parts=_parts({**live, "allocator slack": slack, "CUDA context": context}),
        low_bytes=peak - slack - reserve_doubt - (context - context_low),
        high_bytes=peak + doubt + reserve_doubt + (context_high - context),
        capacity_bytes=device.memory_bytes,
    )


def _on_cpu(trace: Trace, device: Device) -> Breakdown:
    live: Counter[str] = Counter()
    peak: Counter[str] = Counter()
    for event in trace.events:
        if isinstance(event, Alloc | Free):
            storage = trace.storages[event.storage]
            live[storage.part] += storage.bytes if isinstance(event, Alloc) else -storage.bytes
            if live.total() > peak.total():
                peak = live.copy()
    process = trace.facts.process_bytes
    total = peak.total() + process
    return Breakdown(
        parts=_parts({**peak, "process": process}),
        low_bytes=total,
        high_bytes=total + round(peak.total() * _CPU_DOUBT + process * _PROCESS_DOUBT),
        capacity_bytes=device.memory_bytes,
    )


@dataclass(frozen=True, slots=True)
class _Request:
    """Bytes asked for (None: given back) under a key, for a part."""

    key: object
    part: str
    bytes: int | None


def _requests(trace: Trace, device: Device) -> Iterator[_Request]:
    """The trace's storages in order, and the workspace of each thread before its first product."""
    workspace = _WORKSPACE_BYTES_HOPPER if device.compute_capability == (9, 0) else _WORKSPACE_BYTES
    thread = ""
    with_workspace: set[str] = set()
    for event in trace.events:
        match event:
            case Phase(name):
                # Backward runs in a thread of its own.
                thread = "backward" if name == "backward" else "forward"
            case Op(name) if name in _PRODUCTS and thread not in with_workspace:
                with_workspace.add(thread)
                yield _Request((WORKSPACES, thread), WORKSPACES, workspace)
            case Alloc(index):
                yield _Request(index, trace.storages[index].part, trace.storages[index].bytes)
            case Free(index):
                yield _Request(index, trace.storages[index].part, None)


def _replay(requests: list[_Request], allocator: Allocator) -> tuple[Counter[str], int]:
    """Bytes by part at the moment most were allocated, and the most that was reserved. Raises Exhausted."""
    blocks: dict[object, Block] = {}
    live: Counter[str] = Counter()
    peak: Counter[str] = Counter()
    for request in requests:
        if request.bytes is None:
            block = blocks.pop(request.key)
            live[request.part] -= block.size
            allocator.free(block)
            continue
        blocks[request.key] = block = allocator.allocate(request.bytes)
        live[request.part] += block.size
        if live.total() > peak.total():
            peak = live.copy()
    return peak, allocator.peak_reserved


def _parts(sizes: dict[str, int]) -> tuple[MemoryPart, ...]:
    """All that are not empty, the tensors' first, in the record's order."""
    order = [*PARTS, *(name for name in sizes if name not in PARTS)]
    return tuple(MemoryPart(name=name, bytes=sizes[name], source=_SOURCES[name]) for name in order if sizes.get(name))
