"""The microbatches of an effective batch, and the largest of them that fits, found with few traces.

Memory is nearly linear in the microbatch, so a size that should fit is computed from those that were followed, and is
then followed itself: no choice rests on a prediction of its memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from shoestring.estimate.requests import OF_A_BATCH
from shoestring.plan.candidates import Candidate, Candidates
from shoestring.settings import Settings

LONG = 30_000
"""Events of a trace that takes more than about two seconds: then what cannot win is not followed."""

_LITTLE = 1.05
"""What is faster by less is not worth following a long trace for."""

_SURE = 1.03
"""A prediction so much beyond what there is stands without being tried."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """Candidates that differ in their microbatch alone."""

    followed: tuple[Candidate, ...]
    """In the order in which they were."""
    largest: Candidate | None
    """That of the largest microbatch that fits; None where none fits or the recipe cannot have these settings."""


def micro_batches(effective_batch: int, least: int = 1) -> list[int]:
    """The largest microbatch of every way to divide an effective batch as equally as possible, in rising order.

    None is below `least` unless the effective batch is.
    """
    sizes = {-(-effective_batch // parts) for parts in range(1, effective_batch + 1)}
    return sorted(size for size in sizes if size >= min(least, effective_batch))


def is_heavy(candidates: Candidates) -> bool:
    """Whether the model fills a good part of the device: then the smallest microbatch is followed first."""
    return candidates.tracer.facts.weight_bytes > candidates.target.device.memory_bytes / 4


def largest_that_fits(candidates: Candidates, wanted: Settings, sizes: Sequence[int]) -> Series:
    """`wanted` with as many of the microbatches (in rising order) as tell which is the largest that fits.

    Larger ones take more memory and are never slower. None is looked for further where it would gain little.
    """
    capacity = candidates.target.device.memory_bytes
    followed: list[Candidate] = []
    largest: Candidate | None = None
    untried = list(sizes)
    while untried:
        if not followed:
            size = untried[0] if is_heavy(candidates) else untried[-1]
        else:
            # That nothing fits is not believed before the smallest was followed.
            size = max((each for each in untried if bytes_at(each, followed) <= capacity), default=untried[0])
        candidate = candidates.possible(wanted.replace(micro_batch=size))
        if candidate is None:
            largest = None
            break
        followed.append(candidate)
        if candidate.fits:
            largest, untried = candidate, [each for each in untried if each > size]
        else:
            untried = [each for each in untried if each < size]
        if untried and largest:
            too_large = bytes_at(untried[0], followed) > capacity * _SURE
            if too_large or not _worth_enlarging(candidates, largest, sizes[-1]):
                break
    return Series(followed=tuple(followed), largest=largest)


def bytes_at(size: int, followed: Sequence[Candidate]) -> float:
    """The memory range's high end at a microbatch, on a line through the two that are nearest, or from one alone."""
    near = sorted(followed, key=lambda each: (abs(each.trace.micro_batch - size), each.trace.micro_batch))[:2]
    one = near[0]
    if len(near) == 1:
        of_a_batch = sum(part.bytes for part in one.memory.parts if part.name in OF_A_BATCH)
        return one.memory.high_bytes + (size / one.trace.micro_batch - 1) * of_a_batch
    other = near[1]
    slope = (one.memory.high_bytes - other.memory.high_bytes) / (one.trace.micro_batch - other.trace.micro_batch)
    return one.memory.high_bytes + slope * (size - one.trace.micro_batch)


def _worth_enlarging(candidates: Candidates, candidate: Candidate, whole: int) -> bool:
    """Whether a trace is fast, or the whole effective batch at once would be much faster than the candidate."""
    return (
        len(candidate.trace.events) < LONG
        or candidate.time is None
        or candidate.seconds > candidates.seconds_at(candidate, whole) * _LITTLE
    )
