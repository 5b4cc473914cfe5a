"""Estimate the peak memory of training from a trace, as parts that sum to the peak."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from shoestring.hardware.catalog import NCCL_BYTES, NCCL_SOURCE, Device
from shoestring.planning.estimate.lengths import VaryingLengths, VaryingRequests
from shoestring.planning.estimate.replay import Kind, Usage, replay_limited, replay_unlimited, replay_within
from shoestring.planning.estimate.requests import (
    BATCH_PARTS,
    WORKSPACES,
    accumulate_in_place,
    repeat_second_update,
    requests,
    with_smaller_first_batch,
)
from shoestring.planning.estimate.workspaces import distinct_bytes
from shoestring.planning.trace.record import PARTS, Alloc, Free, Op, Phase, Trace

SLACK = "allocator slack"
LEFT = "left by loading"
CONTEXT = "CUDA context"
PROCESS = "process"
NCCL = "NCCL buffers"
_OUTSIDE = (CONTEXT, NCCL, PROCESS)

_SOURCES = {
    "weights": "the model's parameters",
    "buffers": "the model's buffers",
    "gradients": "saved from backward to the optimizer's step",
    "optimizer states": "created in the first step; paged states are in managed memory, not the GPU's, and count 0",
    "averaged weights": "a second copy of the trained weights, in fp32 or a wider type (ema)",
    "batch": "one microbatch as returned by recipe.batch",
    "activations": "created in forward and saved for backward, including autocast's casts of weights",
    "reserve space": "saved for backward by cuDNN's recurrent layers; modeled, not measured",
    "KV cache": "keys and values saved from one token to the next while completions are generated",
    "gradient buckets": "flat copies for the exchange: at most 25 MiB; of all gradients in DistributedDataParallel",
    "gathered weights": "whole weights of a block while it needs them, gathered in their own types (FSDP2)",
    "all-gather buffers": "received shards of a block's weights, for this block and the next (FSDP2)",
    "reduce-scatter buffers": "a block's gradients, to be summed over the GPUs (FSDP2)",
    "loading copies": "weights before they are packed or cast, while the model is loaded",
    "temporaries": "all other results of operators that are alive at the peak",
    WORKSPACES: "for each thread that multiplies matrices 32 MiB, which reproducible bits need (hardware/cublas.py)",
    SLACK: "segments reserved beyond live blocks, by a simulation of torch's caching allocator",
    LEFT: "unused parts of the segments in which the model was loaded; the part of the slack that loading causes",
    CONTEXT: "typical for the device; outside torch's allocator",
    NCCL: NCCL_SOURCE,
    PROCESS: "resident bytes of Python with torch and the recipe's data, measured",
}

_UNKNOWN_WORKSPACES_SHARE = 0.02
"""An assumption: workspaces and copies of kernels are documented nowhere."""
_MIN_PROBABILITY = 0.03
"""About the share of measured runs that lie outside of the range anyhow (docs/log.md, "Estimates of memory")."""
_RESERVE_UNCERTAINTY = 0.5
"""The reserve space's size is cuDNN's secret; the model of it is in `planning/trace/recurrent.py`."""
_RECURRENT_WORKSPACE = 4
"""Reserve spaces of a layer, as modeled, in the workspace of its backward pass: 3.9 for an LSTM in fp16 on an H200."""
_CPU_UNCERTAINTY = 1.0
_PROCESS_UNCERTAINTY = 0.15
"""Assumptions (docstring of `memory`): kernels' buffers and the C library's slack; imports while it trains."""


@dataclass(frozen=True, kw_only=True)
class MemoryPart:
    """One named part of a breakdown, in bytes, and the source of the number."""

    name: str
    """The name of the part."""
    bytes: int
    """Its bytes at the time of the peak."""
    source: str
    """How they were determined."""


@dataclass(frozen=True)
class Range:
    """The expected bytes with a lower and an upper bound."""

    low: int
    """The lower bound in bytes."""
    value: int
    """The expected bytes."""
    high: int
    """The upper bound in bytes."""


@dataclass(frozen=True, kw_only=True)
class Breakdown:
    """Peak memory in bytes; the parts are those at the time of the peak."""

    parts: tuple[MemoryPart, ...]
    """The parts of the memory at the time of the peak."""
    low_bytes: int
    """The lower bound of the peak."""
    high_bytes: int
    """The upper bound of the peak."""
    capacity_bytes: int
    """The device's memory."""
    allocated: Range
    """Bytes of tensors and workspaces: torch's `max_memory_allocated`."""
    reserved: Range
    """The same with the allocator's slack: torch's `max_memory_reserved`. On a CPU there is no slack."""
    loading_bytes: int
    """The expected peak while the model is loaded, before the first update."""

    @property
    def peak_bytes(self) -> int:
        """The expected peak, which is the sum of the parts."""
        return sum(part.bytes for part in self.parts)

    @property
    def fits(self) -> bool:
        """Whether the upper bound fits the device's memory."""
        return self.high_bytes <= self.capacity_bytes

    def json(self) -> dict[str, Any]:
        return {
            "peak_bytes": self.peak_bytes,
            "low_bytes": self.low_bytes,
            "high_bytes": self.high_bytes,
            "loading_bytes": self.loading_bytes,
            "capacity_bytes": self.capacity_bytes,
            "fits": self.fits,
            "allocated": asdict(self.allocated),
            "reserved": asdict(self.reserved),
            "parts": [asdict(part) for part in self.parts],
        }


def memory(
    trace: Trace,
    device: Device,
    *,
    allocator: Kind = "segments",
    gpus: int = 1,
    cudnn_benchmark: bool = False,
    deterministic: bool = True,
    varying: VaryingLengths | None = None,
) -> Breakdown:
    """Estimate the peak memory of the traced updates on `device`, one of `gpus`.

    `deterministic`: cuBLAS has the workspaces that training sets for reproducible bits, otherwise those of torch.
    `varying`: the microbatches have these lengths, of which the trace has the largest.

    Processes on a CPU share its memory in equal parts. The range on a GPU covers possible differences from the
    simulation:

    - The largest temporary tensor may not fit its previous block, if smaller tensors have split it, and then takes a
      new one. That depends on single bytes elsewhere, so reserved memory may be higher or lower by one such tensor.
    - Kernels allocate temporary workspaces, and save copies, of unknown size: 2% of allocated memory in both
      directions, an assumption.
    - cuDNN may choose kernels with workspaces for convolutions: the upper bound is at least the memory of a replay with
      these (`workspaces.py`), as far as they fit.
    - A first batch smaller than the later ones leaves blocks that the later ones do not fit. Its probability comes from
      the recipe; the expected value is the median of the outcomes.
    - The lower bound of allocated memory has no block larger than its tensor, as blocks of more than 1 MiB can be.
    - Half of a fused recurrent layer's reserve space in both directions, since its size is modeled. The upper bound
      also has the workspace of a layer's backward pass.
    - With `cudnn_benchmark` cuDNN tries every algorithm whose workspace fits: the upper bound adds the operands of the
      largest convolution once more, an assumption. It skips those that do not fit, so a run fits without them.
    - With `varying` lengths of the microbatches, blocks of one length do not fit the next: reserved memory is that of
      the lengths in their likely order, and the upper bound that of the worst.
    - The CUDA context, which grows as kernels load.

    A run fits if replays within the device's memory fit, for each possible first batch and with the workspaces of
    convolutions, besides the largest context and all bytes of unknown size above. The largest tensor is not one of
    these: near the limit torch releases the block that it does not fit, as the replay does. The run also has to fit
    besides the typical context alone, because with more memory torch releases segments later, which can leave less.

    On a CPU blocks are not rounded; the upper bound adds the bytes of the tensors once more, for kernels' buffers and
    the C library's own slack, and 15% of the process for imports during training: also assumptions.
    """
    if device.compute_capability is None:
        return _estimate_cpu(trace, device.memory_bytes // gpus)
    outside = {CONTEXT: device.context_bytes, NCCL: NCCL_BYTES if gpus > 1 else (0, 0, 0)}
    in_place = accumulate_in_place(trace)
    lengths = _varying_requests(in_place, varying, device, deterministic) if varying else None
    return _estimate_gpu(in_place, device, allocator, outside, cudnn_benchmark, deterministic, lengths)


def _varying_requests(
    trace: Trace, varying: VaryingLengths, device: Device, deterministic: bool
) -> tuple[VaryingRequests, VaryingLengths]:
    """Return the requests of microbatches of any length. Raises ValueError as `VaryingRequests` does."""
    longer, shorter = (
        requests(in_place, device, deterministic=deterministic)
        for in_place in (trace, accumulate_in_place(varying.shorter))
    )
    return VaryingRequests(longer, shorter, varying.share), varying


def _estimate_gpu(
    trace: Trace,
    device: Device,
    kind: Kind,
    outside: dict[str, tuple[int, int, int]],
    cudnn_benchmark: bool,
    deterministic: bool,
    lengths: tuple[VaryingRequests, VaryingLengths] | None,
) -> Breakdown:
    context_low, context, context_high = (sum(column) for column in zip(*outside.values(), strict=True))
    capacity = device.memory_bytes
    first_shares = first_batch_probabilities(trace)
    repeated = repeat_second_update(trace)
    all_requests = requests(repeated, device, deterministic=deterministic)
    requests_by_share = {share: with_smaller_first_batch(all_requests, trace, share) for share in first_shares}
    unlimited_usages = {share: replay_unlimited(requests_by_share[share], kind) for share in first_shares}
    # A trace that does not fit with the typical context may fit with the smallest one. Both limits are replayed because
    # torch releases unused segments only at the limit, so what a device reserves depends on how much of it there is.
    limits = capacity - context, capacity - context_low
    usages = {
        share: replay_within(limits, requests_by_share[share], kind, unlimited_usages[share]) for share in first_shares
    }
    reserved = _weighted_median({share: usages[share].reserved for share in first_shares}, first_shares)
    usage = usages[1.0]
    if lengths:
        likely, worst = (list(lengths[0].of_updates(updates)) for updates in (lengths[1].likely, lengths[1].worst))
        unlimited_worst = replay_unlimited(worst, kind)
        usage = replay_within(limits, likely, kind, replay_unlimited(likely, kind))
        reserved = usage.reserved
    live = usage.live
    longest = usages[1.0].live.total()

    workspaces = round(longest * _UNKNOWN_WORKSPACES_SHARE)
    # cuDNN skips an algorithm whose workspace does not fit, so this never decides whether a run fits.
    benchmarked = _largest_convolution(trace) if cudnn_benchmark else 0
    largest_tensor = max((storage.bytes for storage in trace.storages if storage.part in BATCH_PARTS), default=0)
    reserve_uncertainty = round(live["reserve space"] * _RESERVE_UNCERTAINTY)
    unknown_bytes = workspaces + reserve_uncertainty + _RECURRENT_WORKSPACE * _largest_reserve_space(trace)
    uncertainty = workspaces + benchmarked + largest_tensor + reserve_uncertainty
    high = max(usage.reserved for usage in unlimited_usages.values()) + largest_tensor + unknown_bytes + benchmarked
    allocated_high = longest + unknown_bytes + benchmarked
    if with_workspaces := _usage_with_workspaces(
        trace, device, kind, capacity - context_low, uncertainty, deterministic
    ):
        high = max(high, with_workspaces.reserved)
        allocated_high = max(allocated_high, with_workspaces.live.total())
    limit = capacity - context_high - unknown_bytes
    fits = all(
        usages[share].reserved <= capacity - context
        and replay_within((limit,), requests_by_share[share], kind, unlimited_usages[share]).reserved <= limit
        for share in first_shares
    ) and _fits_with_workspaces(repeated, device, kind, limit, usages[1.0].reserved, deterministic)
    if lengths:
        high = max(high, unlimited_worst.reserved + unknown_bytes)
        fits = fits and replay_within((limit,), worst, kind, unlimited_worst).reserved <= limit
    if not fits:
        high = max(high, capacity - context_high + 1)
    allocated_range = Range(
        max(0, usage.requested - workspaces - benchmarked - reserve_uncertainty),
        live.total(),
        allocated_high,
    )
    reserved_range = Range(
        max(allocated_range.low, min(reserved, *(usage.reserved for usage in usages.values())) - uncertainty),
        reserved,
        max(reserved, min(high, capacity - context_low) if fits else high),
    )
    typical = {name: middle for name, (_, middle, _) in outside.items()}
    left = min(usage.left_by_loading, reserved - live.total()) if _has_loading_copies(trace) else 0
    return Breakdown(
        parts=_parts({**live, SLACK: reserved - live.total() - left, LEFT: left, **typical}),
        low_bytes=reserved_range.low + context_low,
        high_bytes=max(reserved + context, min(high + context_high, capacity) if fits else high + context_high),
        capacity_bytes=capacity,
        allocated=allocated_range,
        reserved=reserved_range,
        loading_bytes=usage.loading + context,
    )


def _usage_with_workspaces(
    trace: Trace, device: Device, kind: Kind, limit: int, uncertainty: int, deterministic: bool
) -> Usage | None:
    """Return the usage if convolutions have workspaces; None if the uncertainty covers these or nothing fits."""
    assert device.compute_capability is not None
    if distinct_bytes(trace.events, device.compute_capability) <= uncertainty:
        return None
    with_workspaces = requests(trace, device, convolution_workspaces=True, deterministic=deterministic)
    return replay_limited(limit, with_workspaces, kind)


def _fits_with_workspaces(
    repeated: Trace, device: Device, kind: Kind, limit: int, reserved: int, deterministic: bool
) -> bool:
    """Return whether the updates fit if convolutions have workspaces, of which those that do not fit are left out.

    Blocks that workspaces leave may be split by tensors that live long, and then cannot be released.
    """
    assert device.compute_capability is not None
    if reserved + distinct_bytes(repeated.events, device.compute_capability) <= limit:
        return True
    with_workspaces = requests(repeated, device, convolution_workspaces=True, deterministic=deterministic)
    return replay_limited(limit, with_workspaces, kind) is not None


def _estimate_cpu(trace: Trace, capacity_bytes: int) -> Breakdown:
    live: Counter[str] = Counter()
    peak: Counter[str] = Counter()
    loading: int | None = None
    for event in trace.events:
        if isinstance(event, Phase) and event.name != "model" and loading is None:
            loading = peak.total()
        if isinstance(event, Alloc | Free):
            storage = trace.storages[event.storage]
            live[storage.part] += storage.bytes if isinstance(event, Alloc) else -storage.bytes
            if live.total() > peak.total():
                peak = live.copy()
    process = trace.facts.process_bytes
    total = peak.total() + process
    tensors = Range(peak.total(), peak.total(), peak.total() + round(peak.total() * _CPU_UNCERTAINTY))
    return Breakdown(
        parts=_parts({**peak, PROCESS: process}),
        low_bytes=total,
        high_bytes=total + round(peak.total() * _CPU_UNCERTAINTY + process * _PROCESS_UNCERTAINTY),
        capacity_bytes=capacity_bytes,
        allocated=tensors,
        reserved=tensors,
        loading_bytes=process + (loading or 0),
    )


def _largest_reserve_space(trace: Trace) -> int:
    return max((storage.bytes for storage in trace.storages if storage.part == "reserve space"), default=0)


def first_batch_probabilities(trace: Trace) -> dict[float, float]:
    """Return the probabilities of the first batch's possible sizes, as shares of the others.

    Smaller first batches are ignored if they are rarer than the misses of the range itself.
    """
    smaller = dict(trace.first_batches)
    probability = sum(smaller.values())
    return {1.0: 1 - probability, **smaller} if probability >= _MIN_PROBABILITY else {1.0: 1.0}


def _weighted_median(values: dict[float, int], weights: dict[float, float]) -> int:
    cumulative_weight = 0.0
    for name in sorted(values, key=lambda name: values[name]):
        cumulative_weight += weights[name]
        if cumulative_weight >= sum(weights.values()) / 2:
            return values[name]
    return max(values.values())


def _largest_convolution(trace: Trace) -> int:
    sizes = (event.bytes for event in trace.events if isinstance(event, Op) and "convolution" in event.name)
    return max(sizes, default=0)


def _has_loading_copies(trace: Trace) -> bool:
    return any(storage.part == "loading copies" for storage in trace.storages)


def _parts(sizes: dict[str, int]) -> tuple[MemoryPart, ...]:
    """Return all parts that are not empty, in the order of `PARTS`, then those outside the trace."""
    order = [*PARTS, *(name for name in sizes if name not in PARTS)]
    return tuple(MemoryPart(name=name, bytes=sizes[name], source=_SOURCES[name]) for name in order if sizes.get(name))
