"""The fastest settings that fit, for a fixed effective batch.

What is chosen is the fastest of all that fit, wherever the search looks first; so more memory never makes it slower.
Few questions are asked, because following an update of a large model takes seconds. Memory is nearly linear in the
microbatch and in the number of blocks that are computed again, so a size that should fit is computed from those that
are known, and then followed itself: no choice rests on a prediction of its memory.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from shoestring.errors import QuestionError
from shoestring.estimate.requests import OF_A_BATCH
from shoestring.plan.candidates import Candidate, Candidates, possible
from shoestring.settings import Precision, Settings
from shoestring.trace.record import Event, Op, Phase, Trace

CLOSE = 1.1
"""Predicted times nearer than this are a tie: no prediction without a measurement tells them apart."""

LONG = 30_000
"""Events of a trace that takes more than about two seconds: then what cannot win is not followed."""

_LITTLE = 1.05
"""What is faster by less is not worth following a long trace for."""

_SURE = 1.03
"""A prediction so much beyond what there is stands without being tried."""

_EIGHTHS = 8
"""Blocks are computed again in so many parts of all: finer steps change the time by less than it is known."""


def search(candidates: Candidates, wanted: Settings) -> list[Candidate]:
    """All that were followed, the best first: those that fit by time, then those that do not by memory.

    What `wanted` fixes stays fixed; what it leaves open is chosen: the precision, the microbatch, how many blocks
    compute their activations again in backward, and whether the optimizer is one kernel.

    Raises QuestionError where the model, its optimizer or the device cannot have what is fixed.
    """
    if wanted.captured:
        if candidates.target.device.kind != "cuda":
            raise QuestionError(
                f"compile=graphs: CUDA graphs need a GPU, and {candidates.target.device.title} is none",
                hint="compile=yes",
            )
        # What computes again in backward cannot be captured.
        wanted = wanted.replace(checkpointing=wanted.checkpointing or "no")
    for precision in _precisions(candidates, wanted):
        best = fastest(candidates.known())
        if best is None or not _cannot_win(candidates, precision, best):
            _of_precision(candidates, wanted.replace(precision=precision))
        elif len(best.trace.events) < LONG:
            possible(candidates, best.settings.replace(precision=precision))
    best = fastest(candidates.known())
    if best and wanted.micro_batch is None:
        best = _faster_in_smaller_parts(candidates, best)
    if best and wanted.optimizer_kernel is None:
        _in_one_kernel(candidates, best)
    if not candidates.known():
        # No settings are possible; those that were asked for say why.
        first = _precisions(candidates, wanted)[0]
        candidates(wanted.replace(precision=first, micro_batch=wanted.micro_batch or 1))
    return sorted(candidates.known(), key=_rank)


def fastest(found: Sequence[Candidate]) -> Candidate | None:
    """The best of those that fit."""
    return min((each for each in found if each.fits), key=_rank, default=None)


def micro_batches(effective_batch: int, least: int = 1) -> list[int]:
    """The largest microbatch of every way to divide an effective batch as equally as possible, in rising order.

    None is below `least` unless the effective batch is.
    """
    sizes = {-(-effective_batch // parts) for parts in range(1, effective_batch + 1)}
    return sorted(size for size in sizes if size >= min(least, effective_batch))


def _rank(each: Candidate) -> tuple[bool, float, float, int]:
    """Equals are ordered by what takes least, then by fp32, which needs no loss scaling."""
    plain = each.settings.precision != "fp32"
    if not each.fits:
        return (True, each.memory.high_bytes, each.seconds, plain)
    return (False, each.seconds, each.memory.high_bytes if each.time else -(each.settings.micro_batch or 0), plain)


def _precisions(candidates: Candidates, wanted: Settings) -> Sequence[Precision]:
    """Those with units of their own first; of the two 16-bit types the one that needs no loss scaling alone."""
    if wanted.precision:
        return (wanted.precision,)
    there = candidates.target.device.precisions
    if "bf16" in there:
        return ("bf16", "fp32")
    return tuple(reversed(there))


def _cannot_win(candidates: Candidates, precision: Precision, best: Candidate) -> bool:
    """Whether the arithmetic alone would take longer in `precision`, as far as the other precision's trace tells."""
    plain = candidates.known(checkpointing="no", precision=best.settings.precision)
    if not plain:
        return False
    return candidates.seconds_of(in_precision(plain[-1].trace, precision), best.settings) > best.seconds * CLOSE


def in_precision(trace: Trace, precision: Precision) -> Trace:
    """The trace with its arithmetic in `precision`: as many bytes, and none for changing types."""
    events = (
        replace(event, precision=precision) if isinstance(event, Op) else event
        for event in trace.events
        if not (isinstance(event, Op) and event.name.startswith("aten::_to_copy"))
    )
    return replace(trace, precision=precision, events=tuple(events))


def _of_precision(candidates: Candidates, wanted: Settings) -> None:
    """Follow what may be the fastest that fits of one precision."""
    facts, effective_batch = candidates.tracer.facts, candidates.loaded.effective_batch
    sizes = micro_batches(effective_batch, least=2 if facts.batch_norm else 1)
    if wanted.micro_batch:
        sizes = [min(wanted.micro_batch, effective_batch)]
    if wanted.checkpointing:
        _largest(candidates, wanted, sizes)
        return
    if _heavy(candidates) and facts.blocks:
        candidates.ahead(wanted.replace(checkpointing="full", micro_batch=sizes[0]))
    plain = _largest(candidates, wanted.replace(checkpointing="no"), sizes)
    if not facts.blocks or (plain and not _worth_computing_again(plain, candidates, sizes[-1])):
        return
    full = _largest(candidates, wanted.replace(checkpointing="full"), sizes)
    if full and facts.blocks > 1:
        _some_blocks(candidates, full, sizes, facts.blocks)


def _largest(candidates: Candidates, wanted: Settings, sizes: Sequence[int]) -> Candidate | None:
    """The largest of the microbatches (in rising order) that fits; larger ones are never slower."""
    followed: dict[int, Candidate] = {}

    def follow(place: int) -> Candidate | None:
        found = possible(candidates, wanted.replace(micro_batch=sizes[place]))
        if found:
            followed[sizes[place]] = found
        return found

    def predicted(place: int) -> float:
        return _bytes_at(sizes[place], followed)

    def worth(found: Candidate) -> bool:
        """Whether the whole effective batch at once would be much faster than this."""
        return (
            len(found.trace.events) < LONG
            or found.time is None
            or found.seconds > _seconds_at(candidates, found, sizes[-1]) * _LITTLE
        )

    begin = 0 if _heavy(candidates) else len(sizes) - 1
    return _last_that_fits(follow, predicted, worth, range(len(sizes)), begin, candidates.target.device.memory_bytes)


def _heavy(candidates: Candidates) -> bool:
    """Whether the model fills a good part of the device: then the search begins with the smallest microbatch."""
    return candidates.tracer.facts.weight_bytes > candidates.target.device.memory_bytes / 4


def _last_that_fits(
    follow: Callable[[int], Candidate | None],
    predicted: Callable[[int], float],
    worth: Callable[[Candidate], bool],
    places: range,
    begin: int,
    capacity: int,
) -> Candidate | None:
    """The last of the places that fits, each of which takes more memory than the one before; None where none does.

    It is not looked for further where what was found is not worth to be improved.
    """
    low, high = -1, len(places)
    best: Candidate | None = None
    place = begin
    while True:
        found = follow(place)
        if found is None:
            return None
        if found.fits:
            low, best = place, found
        else:
            high = place
        if high - low <= 1 or (best and (not worth(best) or predicted(low + 1) > capacity * _SURE)):
            return best
        # That nothing fits is not believed before the first was followed.
        fitting = [each for each in range(low + 1, high) if predicted(each) <= capacity]
        place = fitting[-1] if fitting else low + 1


def _bytes_at(size: int, followed: dict[int, Candidate]) -> float:
    """The range's high end at a microbatch, on a line through the two followed next to it, or from one alone."""
    near = sorted(followed, key=lambda each: (abs(each - size), each))[:2]
    one = followed[near[0]]
    if len(near) == 1:
        return _scaled_bytes(one, size / near[0])
    other = followed[near[1]]
    slope = (one.memory.high_bytes - other.memory.high_bytes) / (near[0] - near[1])
    return one.memory.high_bytes + slope * (size - near[0])


def _scaled_bytes(found: Candidate, ratio: float) -> float:
    """The range's high end were the batch `ratio` times as large."""
    of_a_batch = sum(part.bytes for part in found.memory.parts if part.name in OF_A_BATCH)
    return found.memory.high_bytes + (ratio - 1) * of_a_batch


def scaled(trace: Trace, micro_batch: int) -> Trace:
    """The trace were its microbatch another one and all its work in proportion: fast, and nearly right."""
    ratio = micro_batch / trace.micro_batch
    events: list[Event] = []
    within = False
    for event in trace.events:
        if isinstance(event, Phase):
            within = event.name in ("forward", "backward")
        elif within and isinstance(event, Op):
            event = replace(event, flops=round(event.flops * ratio), bytes=round(event.bytes * ratio))
        events.append(event)
    return replace(trace, micro_batch=micro_batch, events=tuple(events))


def between(one: Trace, other: Trace, micro_batch: int) -> Trace | None:
    """The work of a trace of another microbatch, on a line through two; None where these do other operators."""
    if len(one.events) != len(other.events):
        return None
    share = (micro_batch - one.micro_batch) / (other.micro_batch - one.micro_batch)
    events: list[Event] = []
    for a, b in zip(one.events, other.events, strict=True):
        if isinstance(a, Op):
            if not isinstance(b, Op) or (a.name, len(a.shape)) != (b.name, len(b.shape)):
                return None
            shape = tuple(round(x + share * (y - x)) for x, y in zip(a.shape, b.shape, strict=True))
            flops, size = (round(x + share * (y - x)) for x, y in ((a.flops, b.flops), (a.bytes, b.bytes)))
            a = replace(a, flops=flops, bytes=size, shape=shape)
        elif type(a) is not type(b):
            return None
        events.append(a)
    return replace(one, micro_batch=micro_batch, events=tuple(events))


def _faster_in_smaller_parts(candidates: Candidates, best: Candidate) -> Candidate:
    """The best, or the same in the microbatches that are predicted to be fastest: kernels waste least at some sizes.

    What is smaller than what fits fits too, so all that is looked for is the time: on lines through two traces.
    """
    least = 2 if candidates.tracer.facts.batch_norm else 1
    sizes = [
        size
        for size in micro_batches(candidates.loaded.effective_batch, least)
        if size < best.trace.micro_batch or (size == best.trace.micro_batch and best.trace.microbatches > 1)
    ]
    if len(sizes) < 2 or len(best.trace.events) > LONG or best.time is None:
        return best
    one, other = (candidates(best.settings.replace(micro_batch=size)) for size in (sizes[0], sizes[-1]))
    times = {
        size: candidates.seconds_of(made, best.settings)
        for size in sizes
        if (made := between(one.trace, other.trace, size)) is not None
    }
    if times:
        size = min(times, key=lambda each: (times[each], -each))
        if times[size] < best.seconds:
            candidates(best.settings.replace(micro_batch=size))
    return fastest(candidates.known()) or best


def _seconds_at(candidates: Candidates, found: Candidate, size: int) -> float:
    return (
        found.seconds
        if found.trace.micro_batch == size
        else candidates.seconds_of(scaled(found.trace, size), found.settings)
    )


def _worth_computing_again(plain: Candidate, candidates: Candidates, whole: int) -> bool:
    """Whether the whole effective batch at once would save more than computing anything again costs."""
    return plain.seconds > _seconds_at(candidates, plain, whole) * CLOSE


def _some_blocks(candidates: Candidates, full: Candidate, sizes: Sequence[int], blocks: int) -> None:
    """Follow the fewest blocks to compute again that fit, at the microbatch where that is predicted to be fastest."""
    base = full.settings
    none = {each.trace.micro_batch: each for each in candidates.known(precision=base.precision, checkpointing="no")}
    every = {each.trace.micro_batch: each for each in candidates.known(precision=base.precision, checkpointing="full")}
    counts = sorted({blocks * part // _EIGHTHS for part in range(1, _EIGHTHS)} - {0}, reverse=True)
    if not none or not counts:
        return

    def bytes_at(size: int, count: int) -> float:
        most, least = _bytes_at(size, none), _bytes_at(size, every)
        return most + (least - most) * count / blocks

    def seconds_at(size: int, count: int) -> float:
        least = _seconds_at(candidates, next(iter(none.values())), size)
        most = _seconds_at(candidates, next(iter(every.values())), size)
        return least + (most - least) * count / blocks

    options = [
        (seconds_at(size, count), -size, count)
        for size in sizes
        if size <= (full.settings.micro_batch or 0)
        for count in counts
        if bytes_at(size, count) <= candidates.target.device.memory_bytes
    ]
    if not options:
        return
    _, size, first = min(options)
    for count in sorted(count for count in counts if count >= first):
        found = possible(candidates, base.replace(micro_batch=-size, checkpointing=str(count)))
        if found is None or found.fits:
            return


def _in_one_kernel(candidates: Candidates, best: Candidate) -> None:
    """Follow the best with its optimizer in one kernel, where its step takes long enough to matter."""
    if candidates.target.device.kind == "cpu" or best.settings.offload != "no" or best.time is None:
        return
    if best.time.parts.get("optimizer", 0.0) > best.seconds * (CLOSE - 1) / 2:
        possible(candidates, best.settings.replace(optimizer_kernel="fused"))
