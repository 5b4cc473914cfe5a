"""The search for the fastest settings that fit, for a fixed effective batch.

The result is the fastest of all settings that fit, regardless of the order of the search, so more memory never makes it
slower. The search traces few candidates, because tracing an update of a large model takes seconds: memory is nearly
linear in the microbatch and in the number of checkpointed blocks, which predicts the next candidate to trace.

On a CPU, settings are compared by nominal rates (`candidates.with_nominal_rates`): the same command plans the same.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from shoestring.base.errors import UsageError
from shoestring.base.settings import Kernel, Precision, Settings
from shoestring.hardware.catalog import Device
from shoestring.planning.candidates import Candidate, Candidates
from shoestring.planning.load import load_of_shard, rows_per_shard
from shoestring.planning.memory_format import candidates_with_channels_last, may_gain
from shoestring.planning.micro_batch import (
    LONG_TRACE_EVENTS,
    MIN_SPEEDUP,
    Series,
    divisible,
    find_largest_that_fits,
    is_heavy,
    micro_batches,
    predict_bytes,
)
from shoestring.planning.projection import in_precision, interpolated
from shoestring.planning.weight_type import precision_of_frozen_weights

TIE_RATIO = 1.1
"""Predicted times whose ratio is smaller are a tie: a prediction without a measurement cannot rank them."""

_EIGHTHS = 8
"""The number of checkpointed blocks changes in this many steps: finer steps change the time by less than its error."""


def collect_candidates(candidates: Candidates, requested: Settings) -> list[Candidate]:
    """Trace every candidate that may be the fastest that fits, in order; return [] if no settings are possible.

    Settings that `requested` fixes stay fixed. The search chooses the open ones of the precision, the microbatch, the
    number of checkpointed blocks, and the memory format. It does not choose the number of GPUs and what they share
    (`planning/gpus.py`).
    """
    tries_channels_last = may_gain(candidates, requested)
    requested, tries_packing = _resolve(candidates, requested)
    sizes = micro_batch_sizes(candidates, requested)
    if weights_exceed_memory(candidates, requested):
        # It tells what the device lacks, and which changes would make it fit.
        candidate = candidates.evaluate_if_possible(smallest(candidates, requested))
        return [candidate] if candidate else []

    pool: list[Candidate] = []
    for precision in _precisions(requested, candidates):
        best = fastest(pool)
        if best and _is_precision_slower(candidates, precision, best, pool):
            pool += _candidates_for_comparison(candidates, precision, best)
        else:
            pool += _candidates_in_precision(candidates, requested.replace(precision=precision), sizes)

    best = fastest(pool)
    if best and requested.micro_batch is None:
        pool += _candidates_with_smaller_micro_batch(candidates, best, sizes)
        best = fastest(pool)
    if best and tries_packing:
        pool += _candidates_with_packing(candidates, requested, best)
        best = fastest(pool) or best
    if tries_channels_last and (rounded := fastest(c for c in pool if c.settings.precision != "fp32")):
        pool += candidates_with_channels_last(candidates, rounded)
        best = fastest(pool)
    return pool


def smallest(candidates: Candidates, requested: Settings) -> Settings:
    """Return the settings with the least memory of those that `collect_candidates` chooses from."""
    requested, _ = _resolve(candidates, requested)
    return requested.replace(
        precision=_precisions(requested, candidates)[0],
        micro_batch=micro_batch_sizes(candidates, requested)[0],
        checkpointing=requested.checkpointing or ("full" if candidates.tracer.facts.blocks else "no"),
    )


def fastest(candidates: Iterable[Candidate]) -> Candidate | None:
    """Return the best of the candidates that fit."""
    return min((candidate for candidate in candidates if candidate.fits), key=rank, default=None)


def rank(candidate: Candidate) -> tuple[bool, float, float, bool]:
    """Return a sort key: candidates that fit by comparable time, then candidates that do not fit by memory.

    Ties are ordered by the least memory (without times by the larger microbatches of all GPUs together), then fp32
    first, which needs no loss scaling.
    """
    bytes_, rounded = candidate.memory.high_bytes, candidate.settings.precision != "fp32"
    if not candidate.fits:
        return (True, bytes_, candidate.comparable_seconds, rounded)
    size = (candidate.settings.micro_batch or 0) * candidate.settings.processes
    return (False, candidate.comparable_seconds, bytes_ if candidate.time else -size, rounded)


def requested_candidate(candidates: Candidates, requested: Settings) -> Candidate:
    """Return the candidate of exactly the requested settings; raises the error of settings that are not possible."""
    requested, _ = _resolve(candidates, requested)
    precision = _precisions(requested, candidates)[0]
    least = candidates.loaded.effective_batch if candidates.loaded.parts.learning.whole_batch else 1
    return candidates.evaluate(requested.replace(precision=precision, micro_batch=requested.micro_batch or least))


def _resolve(candidates: Candidates, requested: Settings) -> tuple[Settings, bool]:
    """Return the settings to search first: contiguous, with the fused optimizer and without packing if these are open;
    and whether to try packing as well.
    """
    requested = requested.replace(
        memory_format=requested.memory_format or "contiguous",
        optimizer_kernel=requested.optimizer_kernel or _default_kernel(candidates, requested),
    )
    if requested.stream_order == "block":  # in which every block is recomputed
        requested = requested.replace(checkpointing=requested.checkpointing or "full")
    return _resolve_packing(candidates, _resolve_cuda_graphs(requested, candidates.target.device))


def _default_kernel(candidates: Candidates, requested: Settings) -> Kernel | None:
    """Return the kernel of the optimizer if it is open: on a GPU the fused one, where there is one.

    It needs the fewest launches and no temporary copies. Kernels round differently, so the choice depends neither on
    predicted times nor on the number of GPUs: the same update has the same bits on one and on several.
    """
    on_gpu = candidates.target.device.kind != "cpu"
    return "fused" if on_gpu and requested.offload == "no" and candidates.tracer.facts.fused_optimizer else None


def _resolve_cuda_graphs(requested: Settings, device: Device) -> Settings:
    """Disable open checkpointing if CUDA graphs are requested, because recomputation cannot be captured in a graph."""
    if not requested.cuda_graphs:
        return requested
    if device.kind != "cuda":
        raise UsageError(f"compile=graphs: CUDA graphs need a GPU, and {device.title} is not a GPU", hint="compile=yes")
    return requested.replace(checkpointing=requested.checkpointing or "no")


def weights_exceed_memory(candidates: Candidates, requested: Settings) -> bool:
    """Return whether the weights alone fill the device, so that no microbatch, precision or recomputation can fit."""
    divides_weights = requested.sharding == "zero3" and requested.processes > 1
    if divides_weights or requested.offload == "parameters" or requested.streamed_blocks:
        return False
    return candidates.tracer.facts.weight_bytes > candidates.target.device.memory_bytes


def _resolve_packing(candidates: Candidates, requested: Settings) -> tuple[Settings, bool]:
    """Return the settings to search first, without packing if it is open, and whether to try packing as well."""
    if requested.packing != "auto" or candidates.loaded.parts.data.packed_batch is None:
        return requested, False
    return requested.replace(packing="no"), True


def _precisions(requested: Settings, candidates: Candidates) -> Sequence[Precision]:
    """Return the precisions to try, faster ones first; of the 16-bit types only bf16, if available: it needs no loss
    scaling."""
    device = candidates.target.device
    if requested.precision:
        return (requested.precision,)
    if frozen := precision_of_frozen_weights(candidates.loaded, device):
        return (frozen,)
    if "bf16" in device.precisions:
        return ("bf16", "fp32")
    return tuple(reversed(device.precisions))


def micro_batch_sizes(candidates: Candidates, requested: Settings) -> list[int]:
    """Return the microbatches to choose from, in rising order; a single sample has no batch statistics.

    They are divisible by the divisor of the candidates; without such a size it is the whole shard.
    """
    samples = rows_per_shard(candidates.loaded, candidates.tracer.facts, requested)
    if candidates.loaded.parts.learning.whole_batch:
        return [samples]
    if requested.micro_batch:
        return [min(requested.micro_batch, samples)]
    sizes = micro_batches(samples, least=2 if candidates.tracer.facts.batch_norm else 1)
    return divisible(sizes, samples, candidates.divisor) or sizes[-1:]


def _is_precision_slower(
    candidates: Candidates, precision: Precision, best: Candidate, pool: Sequence[Candidate]
) -> bool:
    """Return whether the arithmetic alone takes longer in `precision`, projected from a trace of the best precision."""
    comparable_traces = [
        candidate.trace
        for candidate in pool
        if candidate.settings.precision == best.settings.precision and candidate.settings.checkpointing == "no"
    ]
    if not comparable_traces:
        return False
    projected = in_precision(comparable_traces[-1], precision)
    return candidates.seconds_of(projected, best.settings) > best.comparable_seconds * TIE_RATIO


def _candidates_for_comparison(candidates: Candidates, precision: Precision, best: Candidate) -> list[Candidate]:
    """Trace the best settings in a precision that cannot win, to report the difference; skip it if tracing is slow."""
    if len(best.trace.events) >= LONG_TRACE_EVENTS:
        return []
    candidate = candidates.evaluate_if_possible(best.settings.replace(precision=precision))
    return [candidate] if candidate else []


def _candidates_in_precision(candidates: Candidates, requested: Settings, sizes: Sequence[int]) -> list[Candidate]:
    """Trace the candidates of one precision that may be the fastest that fits.

    The order is: no checkpointed block, every block, then the fewest checkpointed blocks that suffice.
    """
    if requested.checkpointing:
        return [*find_largest_that_fits(candidates, requested, sizes).candidates]
    no_block, every_block = requested.replace(checkpointing="no"), requested.replace(checkpointing="full")
    blocks = candidates.tracer.facts.blocks
    if blocks and candidates.tracer.facts.weight_bytes > candidates.target.device.memory_bytes:
        # Divided weights hardly fit: if they do not fit with every block checkpointed, nothing else does.
        least = candidates.evaluate_if_possible(every_block.replace(micro_batch=sizes[0]))
        if least is None or not least.fits:
            return [least] if least else []
    elif blocks and is_heavy(candidates):
        # The series with every block is likely to be needed, and starts with the smallest microbatch.
        candidates.prefetch(every_block.replace(micro_batch=sizes[0]))

    plain = find_largest_that_fits(candidates, no_block, sizes)
    if not blocks or (plain.largest and not _is_recomputation_worthwhile(candidates, plain.largest, sizes[-1])):
        return [*plain.candidates]
    full = find_largest_that_fits(candidates, every_block, sizes)
    partial = _candidates_with_some_blocks_checkpointed(candidates, plain, full, sizes)
    return [*plain.candidates, *full.candidates, *partial]


def _is_recomputation_worthwhile(candidates: Candidates, candidate: Candidate, effective_batch: int) -> bool:
    """Return whether running the effective batch in one microbatch would save more time than recomputation costs."""
    return candidate.comparable_seconds > candidates.seconds_at(candidate, effective_batch) * TIE_RATIO


def _candidates_with_some_blocks_checkpointed(
    candidates: Candidates, plain: Series, full: Series, sizes: Sequence[int]
) -> list[Candidate]:
    """Trace the fewest checkpointed blocks that fit, at the microbatch that is predicted to be fastest.

    The first number of blocks is a prediction, so larger numbers are tried until a candidate fits.
    """
    counts = block_counts(candidates)[1:-1]
    if not full.largest or not plain.candidates or not counts:
        return []
    small_enough = [size for size in sizes if size <= (full.largest.settings.micro_batch or 0)]
    prediction = predict_blocks(candidates, plain.candidates, full.candidates, small_enough, counts)
    if prediction is None:
        return []
    seconds, size, fewest = prediction
    is_long = len(full.largest.trace.events) >= LONG_TRACE_EVENTS
    if is_long and seconds * MIN_SPEEDUP > full.largest.comparable_seconds > 0:
        return []
    partial: list[Candidate] = []
    for count in counts[counts.index(fewest) :]:
        settings = full.largest.settings.replace(micro_batch=size, checkpointing=str(count))
        candidate = candidates.evaluate_if_possible(settings)
        if candidate is None:
            break
        partial.append(candidate)
        if candidate.fits:
            break
    return partial


def block_counts(candidates: Candidates) -> list[int]:
    """Return the numbers of checkpointed blocks to choose from, in rising order: none, some and every block."""
    blocks = candidates.tracer.facts.blocks
    return sorted({blocks * part // _EIGHTHS for part in range(_EIGHTHS + 1)})


def predict_blocks(
    candidates: Candidates,
    plain: Sequence[Candidate],
    full: Sequence[Candidate],
    sizes: Sequence[int],
    counts: Sequence[int],
    *,
    spare_bytes: int = 0,
    changes: Mapping[str, Any] = MappingProxyType({}),
) -> tuple[float, int, int] | None:
    """Predict the fastest microbatch and number of checkpointed blocks that fit, and return their seconds before them.

    Memory and time are interpolated linearly between no block (`plain`) and every block (`full`). `changes` to their
    settings may take other seconds, and save `spare_bytes`. The result is None if no pair should fit.
    """
    blocks, capacity = candidates.tracer.facts.blocks, candidates.target.device.memory_bytes + spare_bytes
    seconds: dict[tuple[int, int], float] = {}
    for size in sizes:
        plain_bytes, full_bytes = predict_bytes(size, plain), predict_bytes(size, full)
        share_of = {count: count / blocks if blocks else 0.0 for count in counts}
        fitting = [
            count for count, share in share_of.items() if plain_bytes + (full_bytes - plain_bytes) * share <= capacity
        ]
        if fitting:
            short, long = (candidates.seconds_at(series[0], size, **changes) for series in (plain, full))
            seconds |= {(size, count): short + (long - short) * share_of[count] for count in fitting}
    best = min(seconds, key=lambda pair: (seconds[pair], -pair[0], pair[1]), default=None)
    return (seconds[best], *best) if best else None


def _candidates_with_smaller_micro_batch(
    candidates: Candidates, best: Candidate, sizes: Sequence[int]
) -> list[Candidate]:
    """Trace the best settings with the microbatch that is predicted to be fastest: some sizes suit the kernels better.

    A microbatch smaller than one that fits also fits, so only times are compared, on lines through two traces.
    """
    smaller = [
        size
        for size in sizes
        if size < best.trace.micro_batch or (size == best.trace.micro_batch and best.trace.microbatches > 1)
    ]
    if len(smaller) < 2 or len(best.trace.events) > LONG_TRACE_EVENTS or best.time is None:
        return []
    ends = [candidates.evaluate(best.settings.replace(micro_batch=size)) for size in (smaller[0], smaller[-1])]
    seconds = {
        size: candidates.seconds_of(trace, best.settings)
        for size in smaller
        if (trace := interpolated(ends[0].trace, ends[1].trace, size))
    }
    size = min(seconds, key=lambda size: (seconds[size], -size), default=None)
    if size is None or seconds[size] >= best.comparable_seconds:
        return ends
    return [*ends, candidates.evaluate(best.settings.replace(micro_batch=size))]


def _candidates_with_packing(candidates: Candidates, requested: Settings, best: Candidate) -> list[Candidate]:
    """Trace the best settings with packed rows, if those have less padding than samples that are sorted by length."""
    settings = best.settings.replace(packing="yes")
    all_sizes = micro_batch_sizes(candidates, requested.replace(packing="yes"))
    sizes = [size for size in all_sizes if size <= (best.settings.micro_batch or size)] or all_sizes[:1]
    loaded, facts = candidates.loaded, candidates.tracer.facts
    sorted_load = load_of_shard(loaded, facts, best.settings, best.trace.micro_batch)
    packed_load = load_of_shard(loaded, facts, settings, sizes[-1])
    if not sorted_load or not packed_load:
        return []
    has_less = packed_load.padded < sorted_load.padded or packed_load.microbatches < sorted_load.microbatches
    if not has_less:
        return []
    packed: list[Candidate] = []
    for size in reversed(sizes):
        candidate = candidates.evaluate_if_possible(settings.replace(micro_batch=size))
        if candidate is None:
            break
        packed.append(candidate)
        if candidate.fits:
            break
    return packed
