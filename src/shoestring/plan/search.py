"""The fastest settings that fit, for a fixed effective batch.

What is chosen is the fastest of all that fit, wherever the search looks first; so more memory never makes it slower.
Few questions are asked, because following an update of a large model takes seconds: memory is nearly linear in the
microbatch and in the number of blocks that are computed again, which tells where to look next.
"""

from collections.abc import Iterable, Sequence

from shoestring.errors import UsageError
from shoestring.hardware.catalog import Device
from shoestring.plan.candidates import Candidate, Candidates
from shoestring.plan.micro_batch import LONG, Series, bytes_at, is_heavy, largest_that_fits, micro_batches
from shoestring.plan.projection import in_precision, interpolated
from shoestring.settings import Precision, Settings

CLOSE = 1.1
"""Predicted times nearer than this are a tie: no prediction without a measurement tells them apart."""

_EIGHTHS = 8
"""Blocks are computed again in so many parts of all: finer steps change the time by less than it is known."""


def search(candidates: Candidates, wanted: Settings) -> list[Candidate]:
    """All that were considered, the best first: those that fit by time, then those that do not by memory.

    What `wanted` fixes stays fixed; what it leaves open is chosen: the precision, the microbatch, how many blocks
    compute their activations again in backward, and whether the optimizer is one kernel.

    Raises UsageError where the model, its optimizer or the device cannot have what is fixed.
    """
    considered = consider(candidates, wanted) or [_as_asked(candidates, wanted)]
    distinct = {candidate.settings: candidate for candidate in considered}
    return sorted(distinct.values(), key=_rank)  # those of equal rank as they were considered


def consider(candidates: Candidates, wanted: Settings) -> list[Candidate]:
    """What may be the fastest that fits, in the order of being considered; nothing where no settings are possible."""
    wanted = _capturable(wanted, candidates.target.device)
    sizes = _sizes(candidates, wanted)

    considered: list[Candidate] = []
    for precision in _precisions(wanted, candidates.target.device):
        best = fastest(considered)
        if best and _is_slower(candidates, precision, best, considered):
            considered += _for_comparison(candidates, precision, best)
        else:
            considered += _of_precision(candidates, wanted.replace(precision=precision), sizes)

    best = fastest(considered)
    if best and wanted.micro_batch is None:
        considered += _in_smaller_parts(candidates, best, sizes)
        best = fastest(considered)
    if best and wanted.optimizer_kernel is None:
        considered += _in_one_kernel(candidates, best)
    return considered


def fastest(candidates: Iterable[Candidate]) -> Candidate | None:
    """The best of those that fit."""
    return min((each for each in candidates if each.fits), key=_rank, default=None)


def _rank(candidate: Candidate) -> tuple[bool, float, float, bool]:
    """What fits by time, then what does not by memory.

    Equals are ordered by what takes least (without times by the larger microbatch), then by fp32, which needs no loss
    scaling.
    """
    bytes_, rounded = candidate.memory.high_bytes, candidate.settings.precision != "fp32"
    if not candidate.fits:
        return (True, bytes_, candidate.seconds, rounded)
    size = candidate.settings.micro_batch or 0
    return (False, candidate.seconds, bytes_ if candidate.time else -size, rounded)


def _as_asked(candidates: Candidates, wanted: Settings) -> Candidate:
    """What was asked for and nothing else. Where no settings are possible, following it raises why."""
    wanted = _capturable(wanted, candidates.target.device)
    precision = _precisions(wanted, candidates.target.device)[0]
    return candidates.follow(wanted.replace(precision=precision, micro_batch=wanted.micro_batch or 1))


def _capturable(wanted: Settings, device: Device) -> Settings:
    """`wanted`, without checkpointing where CUDA graphs are asked for: what computes again cannot be captured."""
    if not wanted.cuda_graphs:
        return wanted
    if device.kind != "cuda":
        raise UsageError(f"compile=graphs: CUDA graphs need a GPU, and {device.title} is none", hint="compile=yes")
    return wanted.replace(checkpointing=wanted.checkpointing or "no")


def _precisions(wanted: Settings, device: Device) -> Sequence[Precision]:
    """Those with units of their own first; of the two 16-bit types the one that needs no loss scaling alone."""
    if wanted.precision:
        return (wanted.precision,)
    if "bf16" in device.precisions:
        return ("bf16", "fp32")
    return tuple(reversed(device.precisions))


def _sizes(candidates: Candidates, wanted: Settings) -> list[int]:
    """The microbatches to choose from, in rising order; a lone sample has no batch statistics."""
    effective_batch = candidates.loaded.effective_batch
    if wanted.micro_batch:
        return [min(wanted.micro_batch, effective_batch)]
    return micro_batches(effective_batch, least=2 if candidates.tracer.facts.batch_norm else 1)


def _is_slower(candidates: Candidates, precision: Precision, best: Candidate, considered: Sequence[Candidate]) -> bool:
    """Whether the arithmetic alone would take longer in `precision`, as far as the best one's precision tells."""
    alike = [
        each.trace
        for each in considered
        if each.settings.precision == best.settings.precision and each.settings.checkpointing == "no"
    ]
    if not alike:
        return False
    return candidates.seconds_of(in_precision(alike[-1], precision), best.settings) > best.seconds * CLOSE


def _for_comparison(candidates: Candidates, precision: Precision, best: Candidate) -> list[Candidate]:
    """The best in a precision that cannot win, to tell by how much; nothing where following it takes long."""
    if len(best.trace.events) >= LONG:
        return []
    candidate = candidates.possible(best.settings.replace(precision=precision))
    return [candidate] if candidate else []


def _of_precision(candidates: Candidates, wanted: Settings, sizes: Sequence[int]) -> list[Candidate]:
    """What may be the fastest that fits of one precision, and what was followed on the way.

    First without computing anything again, then every block, and between the two the fewest blocks that suffice.
    """
    if wanted.checkpointing:
        return [*largest_that_fits(candidates, wanted, sizes).followed]
    no_block, every_block = wanted.replace(checkpointing="no"), wanted.replace(checkpointing="full")
    blocks = candidates.tracer.facts.blocks
    if blocks and is_heavy(candidates):
        # It is likely to be asked for, and then begins with the smallest microbatch.
        candidates.prefetch(every_block.replace(micro_batch=sizes[0]))

    plain = largest_that_fits(candidates, no_block, sizes)
    if not blocks or (plain.largest and not _worth_computing_again(candidates, plain.largest, sizes[-1])):
        return [*plain.followed]
    full = largest_that_fits(candidates, every_block, sizes)
    some = _with_some_blocks(candidates, plain, full, sizes)
    return [*plain.followed, *full.followed, *some]


def _worth_computing_again(candidates: Candidates, candidate: Candidate, whole: int) -> bool:
    """Whether the whole effective batch at once would save more than computing anything again costs."""
    return candidate.seconds > candidates.seconds_at(candidate, whole) * CLOSE


def _with_some_blocks(candidates: Candidates, plain: Series, full: Series, sizes: Sequence[int]) -> list[Candidate]:
    """The fewest blocks to compute again that fit, at the microbatch where that is predicted to be fastest.

    More blocks are tried until something fits, as the first number is a prediction.
    """
    blocks = candidates.tracer.facts.blocks
    counts = sorted({blocks * part // _EIGHTHS for part in range(1, _EIGHTHS)} - {0})
    if not full.largest or not plain.followed or not counts:
        return []
    small_enough = [size for size in sizes if size <= (full.largest.settings.micro_batch or 0)]
    predicted = _predicted_blocks(candidates, plain, full, small_enough, counts)
    if predicted is None:
        return []
    size, fewest = predicted
    followed: list[Candidate] = []
    for count in counts[counts.index(fewest) :]:
        settings = full.largest.settings.replace(micro_batch=size, checkpointing=str(count))
        candidate = candidates.possible(settings)
        if candidate is None:
            break
        followed.append(candidate)
        if candidate.fits:
            break
    return followed


def _predicted_blocks(
    candidates: Candidates, plain: Series, full: Series, sizes: Sequence[int], counts: Sequence[int]
) -> tuple[int, int] | None:
    """The microbatch and the number of blocks that should be fastest of those that should fit; None where none should.

    Memory and time are on a line between those of no block and of every block.
    """
    blocks, capacity = candidates.tracer.facts.blocks, candidates.target.device.memory_bytes
    seconds: dict[tuple[int, int], float] = {}
    for size in sizes:
        most, least = bytes_at(size, plain.followed), bytes_at(size, full.followed)
        fitting = [count for count in counts if most + (least - most) * count / blocks <= capacity]
        if fitting:
            short, long = (candidates.seconds_at(series.followed[0], size) for series in (plain, full))
            seconds |= {(size, count): short + (long - short) * count / blocks for count in fitting}
    return min(seconds, key=lambda each: (seconds[each], -each[0], each[1]), default=None)


def _in_smaller_parts(candidates: Candidates, best: Candidate, sizes: Sequence[int]) -> list[Candidate]:
    """The best in the microbatches that are predicted to be fastest: kernels waste least at some sizes.

    What is smaller than what fits fits too, so all that is looked for is the time: on lines through two traces.
    """
    smaller = [
        size
        for size in sizes
        if size < best.trace.micro_batch or (size == best.trace.micro_batch and best.trace.microbatches > 1)
    ]
    if len(smaller) < 2 or len(best.trace.events) > LONG or best.time is None:
        return []
    ends = [candidates.follow(best.settings.replace(micro_batch=size)) for size in (smaller[0], smaller[-1])]
    seconds = {
        size: candidates.seconds_of(trace, best.settings)
        for size in smaller
        if (trace := interpolated(ends[0].trace, ends[1].trace, size))
    }
    size = min(seconds, key=lambda each: (seconds[each], -each), default=None)
    if size is None or seconds[size] >= best.seconds:
        return ends
    return [*ends, candidates.follow(best.settings.replace(micro_batch=size))]


def _in_one_kernel(candidates: Candidates, best: Candidate) -> list[Candidate]:
    """The best with its optimizer in one kernel, where its step takes long enough to matter."""
    if candidates.target.device.kind == "cpu" or best.settings.offload != "no" or best.time is None:
        return []
    if best.time.parts.get("optimizer", 0.0) <= best.seconds * (CLOSE - 1) / 2:
        return []
    candidate = candidates.possible(best.settings.replace(optimizer_kernel="fused"))
    return [candidate] if candidate else []
