"""Peak memory of training as parts that sum, from a trace."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from shoestring.estimate.allocator import Allocator, Block, Exhausted
from shoestring.estimate.requests import CONVOLUTION_WORKSPACE, WORKSPACES, Request, requests
from shoestring.hardware.catalog import Device
from shoestring.trace.record import PARTS, Alloc, Free, Op, Trace

SLACK = "allocator slack"
CONTEXT = "CUDA context"
PROCESS = "process"

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
    CONVOLUTION_WORKSPACE: "of cuDNN, in passing",
    SLACK: "segments reserved above live blocks, by a simulation of torch's caching allocator",
    CONTEXT: "typical for the device; outside of torch's allocator",
    PROCESS: "resident bytes of Python with torch and the recipe's data, measured",
}

_WORKSPACE_SHARES = (0.5, 1.0)
_FIRST_SHARES = (1.0, 15 / 16, 7 / 8)
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
    def allocated_peak_bytes(self) -> int:
        """Of the peak what tensors and workspaces take: torch's `max_memory_allocated`."""
        return sum(part.bytes for part in self.parts if part.name not in (SLACK, CONTEXT, PROCESS))

    @property
    def reserved_peak_bytes(self) -> int:
        """The same with the allocator's slack: torch's `max_memory_reserved`, where there is a GPU."""
        return sum(part.bytes for part in self.parts if part.name not in (CONTEXT, PROCESS))

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
    space. The high end has the largest context, half as much again of the reserve space, and the most that is reserved
    when one of these differs from the trace, with shares that are assumptions:

    - The first batch is a sixteenth or an eighth shorter, so that what it leaves free fits no later request.
    - Every convolution takes a workspace in passing, half or all of its operands' bytes, since kernels that want
      another layout copy them. Near the limit one that does not fit is done without, as torch does. Which algorithm
      cuDNN takes is not known without the GPU, so the estimate itself has no such workspace.

    On a CPU blocks are not rounded; the high end adds as much again as the tensors for kernels' buffers and the C
    library's own slack, and 15% of the process for what is imported while it trains: assumptions too.
    """
    return _on_cpu(trace, device) if device.compute_capability is None else _on_gpu(trace, device)


def _on_gpu(trace: Trace, device: Device) -> Breakdown:
    context_low, context, context_high = device.context_bytes
    live, reserved = _within(requests(trace, device), device.memory_bytes - context)
    slack = reserved - live.total()
    most = max(
        _within(requests(trace, device, **doubt), device.memory_bytes - context_high)[1] for doubt in _doubts(trace)
    )
    reserve_doubt = round(live["reserve space"] * _RESERVE_DOUBT)
    return Breakdown(
        parts=_parts({**live, SLACK: slack, CONTEXT: context}),
        low_bytes=live.total() - reserve_doubt + context_low,
        # A larger context may leave so little that unused segments are given back and less is reserved.
        high_bytes=max(reserved + context, most + reserve_doubt + context_high),
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
        parts=_parts({**peak, PROCESS: process}),
        low_bytes=total,
        high_bytes=total + round(peak.total() * _CPU_DOUBT + process * _PROCESS_DOUBT),
        capacity_bytes=device.memory_bytes,
    )


def _doubts(trace: Trace) -> list[dict[str, float]]:
    """What may differ from the trace, one thing at a time, as options of `requests`."""
    doubts = [{"first_share": share} for share in _FIRST_SHARES]
    if any(isinstance(event, Op) and "convolution" in event.name for event in trace.events):
        doubts += [{"convolution_share": share} for share in _WORKSPACE_SHARES]
    return doubts


def _within(asked: list[Request], limit: int) -> tuple[Counter[str], int]:
    """`_replay` within the limit, or without one where the limit does not suffice."""
    try:
        # Close to the limit torch gives unused segments back and tries again; so does the simulation.
        return _replay(asked, Allocator(limit))
    except Exhausted:
        return _replay(asked, Allocator())


def _replay(asked: list[Request], allocator: Allocator) -> tuple[Counter[str], int]:
    """Bytes by part at the moment most were allocated, and the most that was reserved. Raises Exhausted."""
    blocks: dict[object, Block] = {}
    live: Counter[str] = Counter()
    peak: Counter[str] = Counter()
    for request in asked:
        if request.bytes is None:
            if block := blocks.pop(request.key, None):
                live[request.part] -= block.size
                allocator.free(block)
            continue
        try:
            blocks[request.key] = block = allocator.allocate(request.bytes)
        except Exhausted:
            if not request.optional:
                raise
            continue
        live[request.part] += block.size
        if live.total() > peak.total():
            peak = live.copy()
    return peak, allocator.peak_reserved


def _parts(sizes: dict[str, int]) -> tuple[MemoryPart, ...]:
    """All that are not empty, the tensors' first, in the record's order."""
    order = [*PARTS, *(name for name in sizes if name not in PARTS)]
    return tuple(MemoryPart(name=name, bytes=sizes[name], source=_SOURCES[name]) for name in order if sizes.get(name))
