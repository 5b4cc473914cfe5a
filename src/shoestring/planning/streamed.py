"""The choice of streamed blocks: as few as make an update fit, where nothing fits that has all weights on the GPU.

If the host has too little memory for the blocks that whole models on each GPU would stream, the model is divided by
blocks between two GPUs (`sharding=pipeline`): each keeps other blocks, so fewer are streamed.

Each streamed block saves its frozen weights, and the time of the copies follows from their bytes
(`planning/estimate/streaming.py`). So one trace without streamed blocks predicts which number of them and which
microbatch are the fastest, and only these are traced. Streaming changes nothing that is learnt.

Where the GPU waits for the copies, the other order of microbatches and blocks is tried (`stream_order=block`), with the
same traces: it copies less, for the memory that the inputs of all microbatches take. Where those of all do not fit, the
update is divided into as few groups of microbatches as fit, which are as equal as possible.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from shoestring.base.settings import Settings
from shoestring.base.units import bytes_text
from shoestring.hardware.catalog import Target
from shoestring.planning.candidates import Candidate, Candidates
from shoestring.planning.costs import planned_disk, planned_host
from shoestring.planning.estimate.block_order import can_change_order
from shoestring.planning.estimate.streaming import host_bytes, saved_bytes
from shoestring.planning.load import rows_per_shard
from shoestring.planning.micro_batch import LONG_TRACE_EVENTS, MIN_SPEEDUP, predict_bytes
from shoestring.planning.search import micro_batch_sizes, rank, smallest
from shoestring.planning.shares import shards_per_gpu
from shoestring.techniques.streaming.schedule import SLOTS

MOST_TRACES = 5
"""The number of streamed candidates that are traced for each number of GPUs, each of which takes seconds."""

WHOLE = (None, "ddp", "zero1")
"""The values of `sharding` with which each GPU has whole weights, which can be streamed."""

_NOTICEABLE = 1.01
"""The ratio of times from which on a note gives it."""

_WORTHWHILE = 0.02
"""The share of an update in which the device waits for copies from which on fewer streamed blocks are looked for."""


class _Order(NamedTuple):
    """An order of microbatches and blocks, and what it needs beside the memory of one microbatch.

    That is the same for each microbatch, since a group has as many samples.
    """

    groups: int | None = None
    """The number of groups of microbatches that use each copy; None: each microbatch has copies of its own."""
    peak_bytes: int = 0
    high_bytes: int = 0

    def applied_to(self, settings: Settings, rows: int) -> Settings | None:
        """Return the settings in this order for updates of so many `rows`; None if they have too few microbatches."""
        if self.groups is None:
            return settings
        settings = settings.replace(stream_order="block")
        if self.groups == 1:
            return settings
        microbatches = -(-rows // (settings.micro_batch or 1))
        group = -(-microbatches // self.groups)
        return settings.replace(stream_group=group) if group > 1 else None


def candidates_with_streaming(
    candidates: Candidates,
    layouts: Sequence[Settings],
    pool: Sequence[Candidate],
    divided: Settings | None = None,
) -> list[Candidate]:
    """Trace settings with streamed blocks if nothing fits with whole weights on each GPU, and blocks can be streamed.

    `layouts` are the requested settings with each number of GPUs, the largest first. A number of GPUs is tried if the
    host has no memory for the streamed weights of the larger ones. If it has none for any, the model is `divided` by
    blocks between two GPUs, where that is possible. If that does not help, they come from the disk.

    If the number of streamed blocks is given, their traces in `pool` are priced in the other order too.
    """
    if layouts[0].streamed_blocks and _can_stream(candidates):
        may_gain = [item for item in pool if item.fits and _waits(item) and _may_change_order(item)]
        return [changed for item in may_gain for changed in _in_block_order(candidates, item)]
    whole = [item for item in pool if item.settings.sharding in WHOLE]
    can_stream = any(len(item.trace.block_bytes) > SLOTS for item in whole)
    if not can_stream or not _is_open(candidates, layouts[0]) or any(item.fits for item in whole):
        return []
    streamed: list[Candidate] = []
    for layout in layouts:
        if layout.sharding not in WHOLE:
            continue
        of_layout = _streamed(candidates, layout)
        streamed += of_layout
        if any(item.fits and planned_host(item, candidates.target).fits for item in of_layout):
            break
    fitting = [item for item in streamed if item.fits]
    from_host = [item for item in fitting if planned_host(item, candidates.target).fits]
    if divided and not from_host:
        streamed += _divided(candidates, divided, fitting or streamed)
        from_host = [item for item in streamed if item.fits and planned_host(item, candidates.target).fits]
    if from_host or layouts[0].stream_from == "host":
        return [*(from_host or streamed), *_with_block_order(candidates, layouts, from_host)]
    from_disk = [item for item in _from_disk(candidates, layouts, fitting) if item.fits and _has_disk(item, candidates)]
    return [*(from_disk or streamed), *_with_block_order(candidates, layouts, from_disk)]


def streaming_notes(ranked: Sequence[Candidate], target: Target) -> Iterator[str]:
    """Yield what the streamed blocks of the first candidate cost, compared with such a GPU that all of them fit on."""
    chosen = ranked[0]
    count, sizes = chosen.settings.streamed_blocks, chosen.trace.bytes_of_all_blocks
    if not count or not sizes:
        return
    source = "from the disk" if chosen.settings.stream_from == "disk" else "from host memory"
    note = f"{count} of {len(sizes)} blocks are streamed {source} ({bytes_text(host_bytes(chosen.trace, count))})"
    resident = [item for item in ranked if not item.settings.streamed_blocks and item.settings.sharding in WHOLE]
    if chosen.time and resident and target.device.kind == "cuda":
        least = min(item.memory.high_bytes for item in resident)
        waiting = chosen.time.parts.get("streaming", 0.0)
        ratio = chosen.time.value / (chosen.time.value - waiting)
        speed = f"{ratio:.2f} times slower than" if ratio >= _NOTICEABLE else "as fast as"
        note += f": {speed} on a card of {bytes_text(least)}, where all would stay"
    yield note + _order_note(chosen, ranked)


def _order_note(chosen: Candidate, ranked: Sequence[Candidate]) -> str:
    """Return what the order of the blocks gains, as the end of a sentence; nothing in the usual order."""
    if chosen.settings.stream_order != "block":
        return ""
    group = chosen.settings.stream_group
    text = "; each copy serves all microbatches of an update (stream_order=block)"
    if group:
        text = f"; each copy serves {group} microbatches of an update (stream_order=block, stream_group={group})"
    usual = [item for item in ranked if item.fits and item.settings.stream_order != "block" and item.time]
    if not usual or not chosen.time:
        return text
    return f"{text}: {usual[0].seconds / chosen.time.value:.2f} times as fast as one microbatch after the other"


def _is_open(candidates: Candidates, requested: Settings) -> bool:
    """Return whether the plan may stream blocks of the recipe; each step of a generation would copy all of them."""
    return (
        requested.streamed_blocks is None
        and requested.offload != "parameters"
        and requested.compile == "no"
        and _can_stream(candidates)
    )


def _can_stream(candidates: Candidates) -> bool:
    learning = candidates.loaded.parts.learning
    return (
        candidates.target.device.kind == "cuda"
        and learning.trainer is None
        and not learning.other_loop
        and learning.rollout is None
    )


def _may_change_order(candidate: Candidate) -> bool:
    """Return whether the order is open and training has the other one for these settings and this model."""
    settings = candidate.settings
    return (
        settings.stream_order is None
        and settings.checkpointing == "full"
        and settings.compile == "no"
        and settings.sharding in WHOLE
        and settings.processes == shards_per_gpu(settings) == 1
        and can_change_order(candidate.trace)
    )


def _with_block_order(
    candidates: Candidates, layouts: Sequence[Settings], usual: Sequence[Candidate]
) -> list[Candidate]:
    """Return candidates of one GPU in the other order, if the device waits for copies in the best of the `usual` one.

    Their number of blocks and microbatch are chosen anew: copies do not depend on the microbatch any more.
    """
    best = min(usual, key=rank, default=None)
    layout = next((layout for layout in layouts if layout.processes == 1), None)
    if best is None or layout is None or not _waits(best):
        return []
    layout = layout.replace(stream_from=best.settings.stream_from)
    changed = _streamed(candidates, layout, in_block_order=True)
    return [item for item in changed if item.fits and can_change_order(item.trace) and _has_disk(item, candidates)]


def _in_block_order(candidates: Candidates, usual: Candidate) -> Iterator[Candidate]:
    """Yield the candidate in the other order, with more and more groups of microbatches until it fits."""
    free_bytes = candidates.target.device.memory_bytes - usual.memory.peak_bytes
    for order in islice(_block_orders(candidates, usual, free_bytes), MOST_TRACES):
        if settings := order.applied_to(usual.settings, _rows(candidates, usual.settings)):
            changed = candidates.evaluate(settings)
            yield changed
            if changed.fits:
                return


def _block_orders(candidates: Candidates, usual: Candidate, free_bytes: float) -> Iterator[_Order]:
    """Yield the orders in which several microbatches use each copy, the fewest groups first, whose memory is expected
    to exceed that of a candidate in the `usual` order by no more than `free_bytes`.
    """
    microbatches = -(-_rows(candidates, usual.settings) // usual.trace.micro_batch)
    groups, group = 1, microbatches
    while group > 1:
        memory = candidates.memory_in_block_order(usual, None if groups == 1 else group)
        order = _Order(
            groups=groups,
            peak_bytes=memory.peak_bytes - usual.memory.peak_bytes,
            high_bytes=memory.high_bytes - usual.memory.high_bytes,
        )
        smaller = group - 1
        if order.peak_bytes <= free_bytes:
            yield order
        elif groups == 1:
            # Each microbatch but one takes about as much, so most sizes of groups need not be tried.
            smaller = min(smaller, 1 + int(smaller * max(free_bytes, 0) / max(order.peak_bytes, 1)))
        groups = -(-microbatches // smaller)
        group = -(-microbatches // groups)


def _rows(candidates: Candidates, settings: Settings) -> int:
    return rows_per_shard(candidates.loaded, candidates.tracer.facts, settings)


def _has_disk(candidate: Candidate, candidates: Candidates) -> bool:
    adapters = bool(candidates.loaded.options.get("lora_r"))
    disk = planned_disk(candidate, candidates.target, adapters=adapters)
    return disk.fits and planned_host(candidate, candidates.target).fits


def _from_disk(candidates: Candidates, layouts: Sequence[Settings], fitting: Sequence[Candidate]) -> list[Candidate]:
    """Return the `fitting` candidates as they are from the disk, and those that are chosen at the disk's rate.

    Each microbatch copies all streamed blocks, which takes most of the time at this rate. So the fastest microbatch is
    a larger one than from host memory, although it needs more streamed blocks.
    """
    from_disk = {}
    for item in fitting:
        settings = item.settings.replace(stream_from="disk")
        from_disk[settings] = candidates.evaluate(settings)
    for layout in layouts if fitting else ():
        if layout.sharding in WHOLE:
            for item in _streamed(candidates, layout.replace(stream_from="disk")):
                from_disk.setdefault(item.settings, item)
    return [*from_disk.values()]


def _streamed(candidates: Candidates, layout: Settings, *, in_block_order: bool = False) -> list[Candidate]:
    """Return the traced candidates with streamed blocks, of the microbatches that are predicted to be the fastest."""
    resident = candidates.evaluate_if_possible(smallest(candidates, layout))
    if resident is None or len(resident.trace.block_bytes) <= SLOTS:
        return []
    if in_block_order and not _may_change_order(resident):
        return []
    orders: Iterator[_Order] = iter([_Order()])
    if in_block_order:
        blocks = resident.trace.block_bytes
        capacity = candidates.target.device.memory_bytes + saved_bytes(blocks, len(blocks))
        orders = _block_orders(candidates, resident, capacity - resident.memory.peak_bytes)
    traced: list[Candidate] = []
    for order in orders:
        for settings in _by_prediction(candidates, layout, resident, order):
            for candidate in _enough(candidates, settings):
                traced.append(candidate)
                if candidate.fits:
                    return [*traced, *_fewer(candidates, resident, candidate, order)]
                if len(traced) >= MOST_TRACES:
                    return traced
    return traced


def _by_prediction(candidates: Candidates, layout: Settings, resident: Candidate, order: _Order) -> Iterator[Settings]:
    """Yield settings of each microbatch with the number of streamed blocks that it needs: the fastest first, then
    smaller ones.
    """
    rows, sizes = _rows(candidates, layout), micro_batch_sizes(candidates, layout)
    blocks = len(resident.trace.block_bytes)
    of_size = {
        size: changed
        for size in sizes
        if (changed := order.applied_to(resident.settings.replace(micro_batch=size, streamed_blocks=blocks), rows))
    }
    counts = {size: count for size in of_size if (count := _fewest(candidates, resident, size, order))}
    counts = counts or {sizes[0]: blocks}
    seconds = {
        size: candidates.seconds_at(
            resident,
            size,
            streamed_blocks=count,
            stream_order=of_size[size].stream_order,
            stream_group=of_size[size].stream_group,
        )
        for size, count in counts.items()
    }
    fastest = min(seconds.values())
    best = next(size for size in counts if seconds[size] <= fastest * MIN_SPEEDUP)
    for size in reversed([size for size in counts if size <= best]):
        yield of_size[size].replace(streamed_blocks=counts[size])
    if sizes[0] not in counts:
        yield of_size[sizes[0]]


def _fewest(
    candidates: Candidates, resident: Candidate, size: int, order: _Order, *, expected: bool = False
) -> int | None:
    """Return the fewest streamed blocks with which a microbatch should fit; None if it fits with no number of them."""
    blocks, capacity = resident.trace.block_bytes, candidates.target.device.memory_bytes
    excess = predict_bytes(size, [resident], "peak_bytes" if expected else "high_bytes") - capacity
    excess += order.peak_bytes if expected else order.high_bytes
    return next((count for count in range(SLOTS + 1, len(blocks) + 1) if saved_bytes(blocks, count) >= excess), None)


def _enough(candidates: Candidates, settings: Settings) -> Iterator[Candidate]:
    """Yield candidates with more and more streamed blocks, up to all of them, until one fits."""
    count = settings.streamed_blocks or 0
    while True:
        candidate = candidates.evaluate(settings.replace(streamed_blocks=count))
        yield candidate
        blocks = candidate.trace.bytes_of_all_blocks
        if candidate.fits or count == len(blocks):
            return
        excess = candidate.memory.high_bytes - candidate.memory.capacity_bytes
        count = min(len(blocks), count + max(1, _gpus(candidate) * -(-excess // max(blocks))))


def _divided(candidates: Candidates, layout: Settings, whole: Sequence[Candidate]) -> list[Candidate]:
    """Trace settings whose blocks are divided between two GPUs, with as few streamed blocks as fit.

    Each GPU is expected to have room for as many resident blocks as one that has the whole model, so it streams what
    remains of its half; the first trace tells how many more fit.
    """
    if not whole:
        return []
    closest = min(whole, key=lambda item: (item.settings.streamed_blocks or 0, item.memory.high_bytes))
    blocks = len(closest.trace.block_bytes)
    resident = blocks - (closest.settings.streamed_blocks or 0)
    settings = closest.settings.replace(
        gpus=layout.gpus, sharding=layout.sharding, logical_shards=layout.logical_shards, stream_from=None
    )
    first = candidates.evaluate_if_possible(settings.replace(streamed_blocks=max(0, blocks - 2 * resident)))
    if first is None:
        return []
    spare = first.memory.capacity_bytes - first.memory.high_bytes
    additional = 2 * (spare // max(first.trace.bytes_of_all_blocks))
    count = max(0, (first.settings.streamed_blocks or 0) - additional)
    return [first, *(_enough(candidates, settings.replace(streamed_blocks=count)) if additional else ())]


def _gpus(candidate: Candidate) -> int:
    """Return the number of GPUs among which the blocks are divided."""
    return 2 if candidate.trace.second else 1


def _fewer(candidates: Candidates, resident: Candidate, fitting: Candidate, order: _Order) -> Iterator[Candidate]:
    """Yield candidates with fewer streamed blocks, if traces are short or the copies take a part of the time that is
    worth a long one.

    The upper bound of the memory of settings that do not fit is often too high, that of the lower bound too low.
    """
    size, enough = fitting.settings.micro_batch or 1, fitting.settings.streamed_blocks or 0
    too_few = (_fewest(candidates, resident, size, order, expected=True) or enough) - 1
    while enough - too_few > 1 and (_waits(fitting) or len(fitting.trace.events) < LONG_TRACE_EVENTS):
        candidate = candidates.evaluate(fitting.settings.replace(streamed_blocks=(enough + too_few) // 2))
        yield candidate
        if candidate.fits:
            fitting, enough = candidate, candidate.settings.streamed_blocks or 0
        else:
            too_few = candidate.settings.streamed_blocks or 0


def _waits(candidate: Candidate) -> bool:
    seconds = candidate.time
    return seconds is not None and seconds.parts.get("streaming", 0.0) > _WORTHWHILE * seconds.value
