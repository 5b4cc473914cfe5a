"""The division of an update's samples into microbatches: sorted by length, or packed into rows of several samples.

It never changes which samples an update has, so it changes the result by rounding only.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeAlias, TypeVar

Member: TypeAlias = int | tuple[int, ...]
"""What a microbatch counts: the index of a sample, or the indices of the samples of a packed row."""

_T = TypeVar("_T")


def longest_first(indices: Sequence[int], length: Callable[[int], float]) -> list[int]:
    """Sort the samples of one update by decreasing `length`, so that a microbatch needs little padding.

    The update does not change, since its loss is a sum over its samples. The longest samples come first, so that an
    out-of-memory error occurs at the start of the update, and later microbatches fit into the memory of earlier ones.
    """
    return sorted(indices, key=lambda index: -length(index))


def pack(indices: Sequence[int], length: Callable[[int], float], capacity: float) -> list[tuple[int, ...]]:
    """Pack samples, the longest first, into rows of at most `capacity`, each into the fullest row that has room for it.

    This is best fit decreasing, which needs at most 11/9 of the fewest possible rows, and one more (Johnson 1974). A
    sample longer than `capacity` has a row of its own. Rows are in the order of their first sample.
    """
    rows: list[list[int]] = []
    free_lengths: list[tuple[float, int]] = []  # the room of each row with its number, in rising order
    for index in indices:
        needed = length(index)
        place = bisect_left(free_lengths, (needed, -1))
        if place == len(free_lengths):
            rows.append([index])
            insort(free_lengths, (capacity - needed, len(rows) - 1))
        else:
            free_length, number = free_lengths.pop(place)
            rows[number].append(index)
            insort(free_lengths, (free_length - needed, number))
    return [tuple(row) for row in rows]


def split(indices: Sequence[_T], micro_batch: int) -> list[Sequence[_T]]:
    """Split an update's samples, or its packed rows, into microbatches of at most `micro_batch`, as equal as possible.

    The order of the samples does not change, and no samples give no microbatches. 64 samples with `micro_batch` 7
    become ten microbatches of 7 or 6, not nine of 7 and one of 1.
    """
    if not indices:
        return []
    count = -(-len(indices) // micro_batch)
    size, larger = divmod(len(indices), count)
    cuts = [0]
    for number in range(count):
        cuts.append(cuts[-1] + size + (number < larger))
    return [indices[start:stop] for start, stop in pairwise(cuts)]


def flattened(members: Sequence[Member]) -> list[int]:
    """Return the samples of a microbatch, without its rows."""
    return [index for member in members for index in (member if isinstance(member, tuple) else (member,))]
