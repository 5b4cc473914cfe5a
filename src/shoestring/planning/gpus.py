"""The choice of the number of GPUs and of what they share, by predicted time, with the exchange, and memory.

Replicas on all GPUs are searched first. Another sharding takes longer to exchange and saves memory, so it is searched
only if that memory would allow faster settings, or any. One GPU is compared with the settings that are best for all.
"""

from collections.abc import Iterator, Sequence

from shoestring.base.errors import TraceError, UsageError
from shoestring.base.settings import Settings
from shoestring.base.units import plural
from shoestring.hardware.catalog import NCCL_BYTES, Target
from shoestring.planning.candidates import Candidate, Candidates
from shoestring.planning.load import is_packed
from shoestring.planning.micro_batch import LONG_TRACE_EVENTS, find_largest_that_fits
from shoestring.planning.search import (
    TIE_RATIO,
    block_counts,
    collect_candidates,
    fastest,
    micro_batch_sizes,
    predict_blocks,
    rank,
    requested_candidate,
    smallest,
    weights_exceed_memory,
)
from shoestring.planning.shares import samples_per_shard
from shoestring.planning.streamed import candidates_with_streaming
from shoestring.recipe.options import LoadedRecipe
from shoestring.techniques.trainable import DIVIDING_WEIGHTS, TRAINED, sharding_problems

MOST_PROCESSES = 16
"""Of a run on a CPU, whose cores they share."""

_DIVIDED = {
    "zero1": ("optimizer states",),
    "zero2": ("optimizer states", "gradients"),
    "zero3": ("optimizer states", "gradients", "weights", "averaged weights"),
}
"""The parts of the memory that each value of `sharding` divides among the GPUs."""

_DIVISORS = (2, 4, 8)
"""What microbatches are multiples of where others fail."""
_OWN_ERRORS = ("AssertionError", "RuntimeError", "ValueError")
"""What code raises for a number of samples that it does not take; operators that cannot be traced raise others."""

_BETWEEN_GPUS = ("gradient buckets", "NCCL buffers")
"""The parts of the memory that one GPU alone does not need."""


def search(candidates: Candidates, requested: Settings) -> list[Candidate]:
    """Return all traced candidates, the best first: those that fit by time, then those that do not fit by memory.

    Settings that `requested` fixes stay fixed. One GPU is better than several that are hardly faster.

    Where the recipe's code fails with a microbatch, such as an odd one, only multiples of 2, 4 or 8 samples are tried.

    Raises UsageError if the model, its optimizer or the device does not support the fixed settings, and TraceError if
    it fails with these multiples too.
    """
    error: TraceError | None = None
    while True:
        try:
            return _search(candidates, requested)
        except TraceError as later:
            error = error or later
            divisor = next((number for number in _DIVISORS if _excludes(candidates, requested, number)), None)
            if divisor is None or not error.message.startswith(_OWN_ERRORS):
                raise error from None
            candidates.divisor, candidates.divisor_reason = divisor, error.message


def _excludes(candidates: Candidates, requested: Settings, divisor: int) -> bool:
    """Return whether multiples of the divisor are fewer sizes, without one that was refused."""
    is_open = requested.micro_batch is None and not candidates.loaded.parts.learning.whole_batch
    return is_open and divisor > candidates.divisor and any(size % divisor for size in candidates.refused)


def divisor_reasons(candidates: Candidates) -> Iterator[str]:
    """Yield why every microbatch is a multiple of 2, 4 or 8 samples."""
    if candidates.divisor > 1:
        name = "even" if candidates.divisor == 2 else f"a multiple of {candidates.divisor} samples"
        refused = next(size for size in candidates.refused if size % candidates.divisor)
        yield (
            f"micro_batch: every microbatch is {name}, because the recipe fails with {refused}: "
            f"{candidates.divisor_reason}"
        )


def _search(candidates: Candidates, requested: Settings) -> list[Candidate]:
    (first, *smaller) = layouts(candidates.loaded, candidates.target, requested)
    can_shard = first.processes > 1 and requested.sharding is None
    if can_shard and weights_exceed_memory(candidates, first) and "zero3" in _shardings(candidates, first):
        candidates.prefetch(smallest(candidates, first.replace(sharding="zero3")))
    pool = collect_candidates(candidates, first)
    if can_shard:
        pool += _with_other_sharding(candidates, first, pool)
    best = fastest(pool)
    for one_gpu in smaller:
        if best and one_gpu.memory_format is None:  # which format is faster does not depend on the number of GPUs
            one_gpu = one_gpu.replace(memory_format=best.settings.memory_format)
        pool += _on_one_gpu(candidates, one_gpu, pool)
    pool += candidates_with_streaming(candidates, [first, *smaller], pool, _divided_by_blocks(candidates, requested))
    pool = pool or [requested_candidate(candidates, first)]
    distinct = {candidate.settings: candidate for candidate in pool}
    ranked = sorted(distinct.values(), key=rank)  # candidates of equal rank stay in the order of the search
    return _preferring_one_gpu(ranked)


def _divided_by_blocks(candidates: Candidates, requested: Settings) -> Settings | None:
    """Return the requested settings with the blocks divided between two GPUs; None if they forbid it, or the target."""
    is_open = requested.gpus in (None, 2) and requested.logical_shards in (None, 1) and requested.sharding is None
    if not is_open or candidates.target.gpus < 2:
        return None
    return _on_gpus(requested.replace(sharding="pipeline"), 2)


def divide(loaded: LoadedRecipe, target: Target, requested: Settings) -> Settings:
    """Return the settings with as many of the target's GPUs as possible, a power of two; on a CPU one process.

    Raises UsageError if more are requested than the target has.
    """
    if requested.is_pipeline:
        requested = requested.replace(gpus=2)
    if requested.gpus:
        if problems := list(_count_problems(target, requested)):
            hint = "leave gpus to the plan"
            if requested.is_pipeline:
                hint = "choose a target with two GPUs, such as kaggle-t4x2, or leave sharding to the plan"
            raise UsageError("the settings need more GPUs", problems=problems, hint=hint)
        return _on_gpus(requested, requested.gpus)
    limit = (
        1 if loaded.parts.learning.whole_batch else min(target.processes, requested.logical_shards or target.processes)
    )
    return _on_gpus(requested, 1 << (limit.bit_length() - 1))


def layouts(loaded: LoadedRecipe, target: Target, requested: Settings) -> list[Settings]:
    """Return the requested settings with each number of GPUs to choose from, the largest first.

    Raises UsageError if the recipe or the target does not support the requested ones.
    """
    divided = divide(loaded, target, requested)
    if requested.gpus is None and divided.processes > loaded.effective_batch:
        divided = _on_gpus(requested, 1 << (loaded.effective_batch.bit_length() - 1))
    _require_possible(loaded, target, divided)
    # A sharding that is requested is for several GPUs, and so are the logical shards of a library's trainer.
    is_open = requested.gpus is None and requested.sharding in (None, "ddp")
    if loaded.parts.learning.trainer is not None and requested.logical_shards is not None:
        is_open = False
    return [divided, _on_gpus(requested, 1)] if is_open and divided.processes > 1 else [divided]


def _on_gpus(requested: Settings, gpus: int) -> Settings:
    settings = requested.replace(gpus=gpus, sharding=requested.sharding or "ddp")
    return settings.replace(logical_shards=requested.logical_shards or settings.processes)


def _count_problems(target: Target, requested: Settings) -> Iterator[str]:
    gpus = requested.gpus or 1
    if requested.is_pipeline:
        if target.gpus < gpus:
            available = plural(target.gpus, "GPU") if target.gpus else "no GPU"
            yield f"sharding=pipeline: {target.name} has {available}, and the model is divided between two"
        return
    if target.gpus and gpus > target.gpus:
        yield f"gpus={gpus}: {target.name} has {plural(target.gpus, 'GPU')}"
    if not target.gpus and gpus > MOST_PROCESSES:
        yield f"gpus={gpus}: at most {MOST_PROCESSES} processes share a CPU"


def _require_possible(loaded: LoadedRecipe, target: Target, settings: Settings) -> None:
    gpus, shards, sharding = settings.processes, settings.logical_shards, settings.sharding
    problems = []
    if gpus > loaded.effective_batch:
        samples = plural(loaded.effective_batch, "sample")
        problems.append(f"gpus={gpus}: an update has only {samples} (effective_batch)")
    if loaded.parts.learning.trainer is not None and gpus > 1 and sharding not in TRAINED[True]:
        problems.append(
            f"sharding={sharding}: {loaded.name} is trained by a library, whose optimizer makes the whole step on each "
            "GPU; sharding=zero3 divides the weights"
        )
    if loaded.parts.learning.trainer is not None and settings.is_pipeline:
        problems.append(
            f"sharding=pipeline: {loaded.name} is trained by a library, which moves the whole model to one GPU; "
            "sharding=zero3 divides the weights"
        )
    if loaded.parts.learning.after_update is not None and gpus > 1 and sharding in DIVIDING_WEIGHTS:
        problems.append(
            f"sharding={sharding}: after_update(model) needs whole weights, and a GPU would have a part of them; "
            "sharding=zero1 divides the optimizer states"
        )
    has_whole_weights = gpus == 1 or sharding in ("ddp", "zero1")
    if loaded.parts.learning.trainer is not None and settings.offload == "parameters" and has_whole_weights:
        problems.append(
            f"offload=parameters: {loaded.name} is trained by a library, which moves whole weights to the GPU; divided "
            "ones (sharding=zero3, several GPUs) can be in host memory, and states with offload=optimizer"
        )
    if loaded.parts.learning.trainer is not None and settings.streamed_blocks:
        problems.append(
            f"streamed_blocks={settings.streamed_blocks}: {loaded.name} is trained by a library, which moves whole "
            "weights to the GPU; set streamed_blocks=0"
        )
    if loaded.parts.learning.trainer is not None and shards != gpus:
        problems.append(
            f"logical_shards={shards}: {loaded.name} is trained by a library, which divides an update among {gpus} GPUs"
        )
    if loaded.parts.learning.trainer is not None and settings.memory_format == "channels_last":
        problems.append(
            f"memory_format=channels_last: {loaded.name} is trained by a library, which moves its batches to the GPU"
        )
    if problems:
        raise UsageError(
            f"{loaded.name} cannot be trained in this way on {target.name}",
            problems=problems,
            hint="leave gpus, logical_shards and sharding to the plan, or choose a smaller number",
        )


def _with_other_sharding(candidates: Candidates, replicas: Settings, pool: Sequence[Candidate]) -> list[Candidate]:
    """Trace settings of replicas that divide some of their tensors, if that can make room for faster settings."""
    sharded: list[Candidate] = []
    for sharding in _shardings(candidates, replicas):
        settings = replicas.replace(sharding=sharding)
        best = fastest([*pool, *sharded])
        if best is None:
            is_useful = bool(pool) and _can_fit(candidates, pool, _DIVIDED[sharding], settings.processes)
        else:
            is_useful = _can_be_faster(candidates, pool, settings)
        if is_useful:
            sharded += collect_candidates(candidates, settings)
    return sharded


def _shardings(candidates: Candidates, replicas: Settings) -> list[str]:
    """Return the values of `sharding` with which the recipe can be trained and that divide some tensors of replicas."""
    loaded = candidates.loaded
    if loaded.parts.learning.trainer is not None:
        return []  # which may use weights of a block without calling it: dividing them is for a person to choose
    excluded = DIVIDING_WEIGHTS if loaded.parts.learning.after_update is not None else ()
    return [
        name
        for name in TRAINED[False]
        if name in _DIVIDED
        and name not in excluded
        and not sharding_problems(replicas.replace(sharding=name), loaded.adaptation)
    ]


def _on_one_gpu(candidates: Candidates, one_gpu: Settings, pool: Sequence[Candidate]) -> list[Candidate]:
    """Trace the settings of one GPU: if it takes long and cannot be faster, only those that are the best for all."""
    replicas, best = [candidate for candidate in pool if candidate.settings.sharding == "ddp"], fastest(pool)
    if replicas and fastest(replicas) is None and not _can_fit(candidates, replicas, _BETWEEN_GPUS, 0):
        return []
    if best is None:
        return collect_candidates(candidates, one_gpu)
    is_long = len(best.trace.events) >= LONG_TRACE_EVENTS
    if not is_long or _ideal_seconds(candidates, pool, one_gpu) < best.comparable_seconds:
        return collect_candidates(candidates, one_gpu)
    if best.settings.sharding == "ddp" and best.trace.microbatches > 1 and one_gpu.logical_shards == 1:
        return [candidates.without_exchange(best)]
    similar = one_gpu.replace(
        precision=best.settings.precision,
        checkpointing=best.settings.checkpointing,
        optimizer_kernel=best.settings.optimizer_kernel,
        memory_format=best.settings.memory_format,
    )
    return [*find_largest_that_fits(candidates, similar, micro_batch_sizes(candidates, one_gpu)).candidates]


def _can_fit(candidates: Candidates, pool: Sequence[Candidate], parts: Sequence[str], gpus: int) -> bool:
    """Return whether the least memory of a candidate would fit if each GPU had a share of these parts, or none."""
    least = min(pool, key=lambda candidate: candidate.memory.high_bytes)
    divided = sum(part.bytes for part in least.memory.parts if part.name in parts)
    unsure = NCCL_BYTES[2] if gpus == 0 else 0
    needed = least.memory.high_bytes - divided - unsure + (divided // gpus if gpus else 0)
    return needed <= candidates.target.device.memory_bytes


def _can_be_faster(candidates: Candidates, pool: Sequence[Candidate], settings: Settings) -> bool:
    """Return whether replicas (`pool`) would be faster with the memory that the sharding of `settings` saves.

    Their memory and time at other microbatches and numbers of checkpointed blocks are predicted from those traced. The
    buffers for divided tensors are not counted, so settings that are not traced would hardly fit.
    """
    comparable = [candidate for candidate in pool if not is_packed(candidate.settings)] or pool
    best = fastest(comparable)
    if best is None:
        return True
    similar = [candidate for candidate in comparable if candidate.settings.precision == best.settings.precision]
    plain, full = (_by_size(similar, checkpointing) for checkpointing in ("no", "full"))
    counts = block_counts(candidates)
    if not plain or not full:
        plain = full = plain or full or [best]
        counts = [0]
    divided = sum(part.bytes for part in best.memory.parts if part.name in _DIVIDED[settings.sharding or ""])
    prediction = predict_blocks(
        candidates,
        plain,
        full,
        micro_batch_sizes(candidates, settings),
        counts,
        spare_bytes=divided - divided // best.settings.processes,
        changes={"sharding": settings.sharding},
    )
    return prediction is not None and prediction[0] < best.comparable_seconds


def _by_size(pool: Sequence[Candidate], checkpointing: str) -> list[Candidate]:
    """Return a candidate for each microbatch that was traced with this checkpointing."""
    by_size: dict[int, Candidate] = {}
    for candidate in pool:
        if candidate.settings.checkpointing == checkpointing:
            by_size.setdefault(candidate.trace.micro_batch, candidate)
    return list(by_size.values())


def _ideal_seconds(candidates: Candidates, pool: Sequence[Candidate], settings: Settings) -> float:
    """Return the seconds of an update if memory allowed a whole logical shard at once without recomputation."""
    size = samples_per_shard(candidates.loaded.effective_batch, settings)
    plain = [candidate for candidate in pool if candidate.settings.checkpointing == "no"] or pool
    return min(
        candidates.seconds_of(candidate.trace, settings.replace(precision=candidate.settings.precision), size)
        for candidate in plain
    )


def _preferring_one_gpu(ranked: list[Candidate]) -> list[Candidate]:
    """Return the candidates with the best one of one GPU first if several GPUs are not faster beyond a tie."""
    best = ranked[0]
    if not best.fits or best.settings.processes == 1 or best.time is None:
        return ranked
    for candidate in ranked:
        is_tie = candidate.fits and candidate.comparable_seconds < best.comparable_seconds * TIE_RATIO
        if is_tie and candidate.settings.processes == 1:
            return [candidate, *(other for other in ranked if other is not candidate)]
    return ranked
