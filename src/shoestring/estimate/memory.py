"""Peak memory of training as parts that sum, from a trace."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from shoestring.estimate.replay import Kind, unlimited, within
from shoestring.estimate.requests import OF_A_BATCH, WORKSPACES, requests, settled
from shoestring.hardware.catalog import NCCL_BYTES, NCCL_SOURCE, Device
from shoestring.trace.record import PARTS, Alloc, Free, Op, Trace

SLACK = "allocator slack"
CONTEXT = "CUDA context"
PROCESS = "process"
NCCL = "NCCL buffers"
_OUTSIDE = (CONTEXT, NCCL, PROCESS)

_SOURCES = {
    "weights": "the model's parameters",
    "buffers": "the model's buffers",
    "gradients": "kept from backward to the optimizer's step",
    "optimizer states": "made in the first step; paged ones lie in managed memory, apart from the GPU's, and count 0",
    "batch": "one microbatch as recipe.batch gives it",
    "activations": "made in forward and kept for backward, casts of weights by autocast among them",
    "reserve space": "a model of what cuDNN keeps of recurrent layers; not measured",
    "KV cache": "keys and values kept from one token to the next while completions are written",
    "gradient buckets": "of DistributedDataParallel: all gradients a second time, laid end to end (reducer.cpp)",
    "gathered weights": "weights in full while a block needs them, gathered in their own types (FSDP2)",
    "all-gather buffers": "what other GPUs send of a block's weights, for this block and the next (FSDP2)",
    "reduce-scatter buffers": "a block's gradients laid out to be added up over the GPUs (FSDP2)",
    "temporaries": "operators' results alive at the peak that are none of the others",
    WORKSPACES: "8.125 MiB for each thread that multiplies matrices, 32 MiB on capability 9.0 (CublasHandlePool.cpp)",
    SLACK: "segments reserved above live blocks, by a simulation of torch's caching allocator",
    CONTEXT: "typical for the device; outside of torch's allocator",
    NCCL: NCCL_SOURCE,
    PROCESS: "resident bytes of Python with torch and the recipe's data, measured",
}

_UNKNOWN_WORKSPACES = 0.02
_RARE = 0.03
_RESERVE_DOUBT = 0.5
_CPU_DOUBT = 1.0
_PROCESS_DOUBT = 0.15


@dataclass(frozen=True, kw_only=True)
class MemoryPart:
    """One named part of a breakdown, in bytes, and where the number is from."""

    name: str
    bytes: int
    source: str


@dataclass(frozen=True)
class Range:
    """Bytes that are expected, and the least and the most that they may honestly be."""

    low: int
    value: int
    high: int


@dataclass(frozen=True, kw_only=True)
class Breakdown:
    """Peak memory in bytes; the parts are those of the moment of the peak."""

    parts: tuple[MemoryPart, ...]
    low_bytes: int
    high_bytes: int
    capacity_bytes: int
    allocated: Range
    """What tensors and workspaces take: torch's `max_memory_allocated`."""
    reserved: Range
    """The same with the allocator's slack: torch's `max_memory_reserved`. On a CPU there is none: as allocated."""

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
            "allocated": asdict(self.allocated),
            "reserved": asdict(self.reserved),
            "parts": [asdict(part) for part in self.parts],
        }


def memory(
    trace: Trace, device: Device, *, allocator: Kind = "segments", gpus: int = 1, cudnn_benchmark: bool = False
) -> Breakdown:
    """What the traced updates take on `device`, one of `gpus`.

    The range on a GPU is made of what may differ from the simulation:

    - The largest tensor that comes and goes may find its old place cut up by smaller ones, and so take another. Which
      one does depends on single bytes elsewhere; so reserved memory may be more or less by one such tensor.
    - Kernels take workspaces in passing, and save copies, that nobody outside of them knows: 2% of what is allocated,
      more or less, an assumption.
    - A first batch that is smaller than the later ones leaves blocks that these do not fit. How likely that is comes
      from the recipe; the expectation is the median of the outcomes.
    - Of allocated memory the low end has no block larger than its tensor, as those of more than 1 MiB may be.
    - Half of a fused recurrent layer's reserve space, more or less, since its size is a model.
    - With `cudnn_benchmark` cuDNN tries every algorithm that it can find memory for: as much again as the operands of
      the largest convolution, an assumption.
    - The CUDA context, which grows as kernels load.

    On a CPU blocks are not rounded; the high end adds as much again as the tensors for kernels' buffers and the C
    library's own slack, and 15% of the process for what is imported while it trains: assumptions too.
    """
    if device.compute_capability is None:
        return _on_cpu(trace, device)
    outside = {CONTEXT: device.context_bytes, NCCL: NCCL_BYTES if gpus > 1 else (0, 0, 0)}
    return _on_gpu(settled(trace), device, allocator, outside, cudnn_benchmark)


def _on_gpu(
    trace: Trace, device: Device, kind: Kind, outside: dict[str, tuple[int, int, int]], cudnn_benchmark: bool
) -> Breakdown:
    context_low, context, context_high = (sum(column) for column in zip(*outside.values(), strict=True))
    capacity = device.memory_bytes
    firsts = _first_batches(trace)
    asked = {share: requests(trace, device, first_share=share) for share in firsts}
    free = {share: unlimited(asked[share], kind) for share in firsts}
    # What fits beside the smallest context alone may still fit.
    limits = capacity - context, capacity - context_low
    usages = {share: within(limits, asked[share], kind, free[share]) for share in firsts}
    usage = usages[1.0]
    live = usage.live
    reserved = _weighted_median({share: usages[share].reserved for share in firsts}, firsts)

    workspaces = round(live.total() * _UNKNOWN_WORKSPACES) + (_largest_convolution(trace) if cudnn_benchmark else 0)
    misplaced = max((storage.bytes for storage in trace.storages if storage.part in OF_A_BATCH), default=0)
    reserve_doubt = round(live["reserve space"] * _RESERVE_DOUBT)
    doubt = workspaces + misplaced + reserve_doubt
    most = max(used.reserved for used in free.values()) + doubt
    # Unused segments are given back where memory ends: what fits with the doubt set aside reserves no more than all.
    limit = capacity - context_high - doubt
    fits = all(within((limit,), asked[share], kind, free[share]).reserved <= limit for share in firsts)
    allocated_range = Range(
        max(0, usage.requested - workspaces - reserve_doubt),
        live.total(),
        live.total() + workspaces + reserve_doubt,
    )
    reserved_range = Range(
        max(allocated_range.low, min(used.reserved for used in usages.values()) - doubt),
        reserved,
        max(reserved, min(most, capacity - context_low) if fits else most),
    )
    typical = {name: middle for name, (_, middle, _) in outside.items()}
    return Breakdown(
        parts=_parts({**live, SLACK: reserved - live.total(), **typical}),
        low_bytes=reserved_range.low + context_low,
        high_bytes=max(reserved + context, min(most + context_high, capacity) if fits else most + context_high),
        capacity_bytes=capacity,
        allocated=allocated_range,
        reserved=reserved_range,
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
    tensors = Range(peak.total(), peak.total(), peak.total() + round(peak.total() * _CPU_DOUBT))
    return Breakdown(
        parts=_parts({**peak, PROCESS: process}),
        low_bytes=total,
        high_bytes=total + round(peak.total() * _CPU_DOUBT + process * _PROCESS_DOUBT),
        capacity_bytes=device.memory_bytes,
        allocated=tensors,
        reserved=tensors,
    )


def _first_batches(trace: Trace) -> dict[float, float]:
    """How likely the first batch is which share of the others; outcomes that are rarer than the range's own misses
    are left out."""
    smaller = dict(trace.first_batches)
    likely = sum(smaller.values())
    return {1.0: 1 - likely, **smaller} if likely >= _RARE else {1.0: 1.0}


def _weighted_median(values: dict[float, int], weights: dict[float, float]) -> int:
    below = 0.0
    for name in sorted(values, key=lambda name: values[name]):
        below += weights[name]
        if below >= sum(weights.values()) / 2:
            return values[name]
    return max(values.values())


def _largest_convolution(trace: Trace) -> int:
    sizes = (event.bytes for event in trace.events if isinstance(event, Op) and "convolution" in event.name)
    return max(sizes, default=0)


def _parts(sizes: dict[str, int]) -> tuple[MemoryPart, ...]:
    """All that are not empty, the tensors' first, in the record's order."""
    order = [*PARTS, *(name for name in sizes if name not in PARTS)]
    return tuple(MemoryPart(name=name, bytes=sizes[name], source=_SOURCES[name]) for name in order if sizes.get(name))
