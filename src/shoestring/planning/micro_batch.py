"""The microbatches of an effective batch, and a search with few traces for the largest one that fits.

Memory is nearly linear in the microbatch, so the size of the next candidate is predicted from the traced ones, and is
then traced itself: no choice relies on a prediction of its memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isqrt
from typing import Literal

from shoestring.base.settings import Settings
from shoestring.planning.candidates import Candidate, Candidates
from shoestring.planning.estimate.requests import BATCH_PARTS

LONG_TRACE_EVENTS = 30_000
"""Events of a trace that takes more than about two seconds: such a candidate is not traced if it cannot win."""

MIN_SPEEDUP = 1.05
"""A smaller speedup does not justify a long trace."""

_FIRST_SIZE = 64
"""The largest microbatch that is traced first: more samples can take minutes to load, and then not fit by far."""

_CERTAIN_EXCESS = 1.03
"""A candidate whose predicted memory exceeds the capacity by this factor is skipped without tracing."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """Candidates that differ only in their microbatch."""

    candidates: tuple[Candidate, ...]
    """In the order in which they were traced."""
    largest: Candidate | None
    """The largest microbatch that fits; None if none fits or the recipe does not support the settings."""


def micro_batches(effective_batch: int, least: int = 1) -> list[int]:
    """Return the largest microbatch of every way to divide an effective batch as equally as possible, in rising order.

    No size is below `least` unless the effective batch is.
    """
    few = range(1, isqrt(effective_batch) + 2)
    sizes = {-(-effective_batch // parts) for parts in few}
    # With more parts, the sizes are as small as these; one of them results from a number of parts, or from none.
    sizes |= {size for size in few if -(-effective_batch // -(-effective_batch // size)) == size}
    return sorted(size for size in sizes if size >= min(least, effective_batch))


def divisible(sizes: Sequence[int], samples: int, divisor: int) -> list[int]:
    """Return the microbatches with which every microbatch of so many samples is a multiple of `divisor`."""
    counts = {size: -(-samples // size) for size in sizes}
    return [size for size, count in counts.items() if divisor == 1 or samples % (count * divisor) == 0]


def is_heavy(candidates: Candidates) -> bool:
    """Return whether the weights fill a large part of the device: then the smallest microbatch is traced first."""
    return candidates.tracer.facts.weight_bytes > candidates.target.device.memory_bytes / 4


def find_largest_that_fits(candidates: Candidates, requested: Settings, sizes: Sequence[int]) -> Series:
    """Trace `requested` with as many of the microbatches (in rising order) as needed to find the largest that fits.

    A larger microbatch needs more memory and is never slower. The search stops when a larger one would gain little.
    """
    capacity = candidates.target.device.memory_bytes
    series: list[Candidate] = []
    largest: Candidate | None = None
    untried = list(sizes)
    while untried:
        if not series:
            size = untried[0] if is_heavy(candidates) else _first_size(untried)
        else:
            size = _next_size(untried, series, capacity)
            if is_heavy(candidates) and len(series) == 1 and size > untried[0]:
                # A prediction from one candidate is often too low.
                candidates.prefetch(requested.replace(micro_batch=untried[untried.index(size) - 1]))
        candidate = candidates.evaluate_if_possible(requested.replace(micro_batch=size))
        if candidate is None:
            largest = None
            break
        series.append(candidate)
        if candidate.fits:
            largest, untried = candidate, [larger for larger in untried if larger > size]
        else:
            untried = [smaller for smaller in untried if smaller < size]
        if untried and largest:
            too_large = predict_bytes(untried[0], series, "peak_bytes") > capacity * _CERTAIN_EXCESS
            if too_large or not _is_worth_enlarging(candidates, largest, sizes[-1]):
                break
    return Series(candidates=tuple(series), largest=largest)


def _first_size(sizes: Sequence[int]) -> int:
    return max((size for size in sizes if size <= _FIRST_SIZE), default=sizes[0])


def _next_size(untried: Sequence[int], series: Sequence[Candidate], capacity: int) -> int:
    """Return the size to trace next: the largest that is predicted to fit.

    If none is, the middle of those whose expected memory fits: the high end assumes unlimited memory where a candidate
    does not fit, and lies at the capacity where one fits by releasing memory, so predictions of it are often too high.
    """
    possible = [size for size in untried if predict_bytes(size, series, "peak_bytes") <= capacity]
    if fitting := [size for size in possible if predict_bytes(size, series) <= capacity]:
        return fitting[-1]
    # Trace the smallest size before concluding that no size fits.
    if not possible or not any(candidate.fits for candidate in series):
        return untried[0]
    return possible[(len(possible) - 1) // 2]


def predict_bytes(
    size: int, series: Sequence[Candidate], end: Literal["high_bytes", "peak_bytes"] = "high_bytes"
) -> float:
    """Predict the high end of the memory range at a microbatch, or the expected peak, on a line through the two nearest
    candidates.

    With a single candidate, the memory that depends on the batch is scaled in proportion.
    """
    nearest = sorted(
        series, key=lambda candidate: (abs(candidate.trace.micro_batch - size), candidate.trace.micro_batch)
    )[:2]
    first = nearest[0]
    first_bytes: float = getattr(first.memory, end)
    if len(nearest) == 1:
        batch_bytes = sum(part.bytes for part in first.memory.parts if part.name in BATCH_PARTS)
        return first_bytes + (size / first.trace.micro_batch - 1) * batch_bytes
    second = nearest[1]
    second_bytes: float = getattr(second.memory, end)
    slope = (first_bytes - second_bytes) / (first.trace.micro_batch - second.trace.micro_batch)
    return first_bytes + slope * (size - first.trace.micro_batch)


def _is_worth_enlarging(candidates: Candidates, candidate: Candidate, effective_batch: int) -> bool:
    """Return whether tracing is fast, or running the effective batch in one microbatch would be much faster."""
    return (
        len(candidate.trace.events) < LONG_TRACE_EVENTS
        or candidate.time is None
        or candidate.comparable_seconds > candidates.seconds_at(candidate, effective_batch) * MIN_SPEEDUP
    )
