"""The requests of updates whose microbatches differ in length, from the traces of two lengths.

A run's microbatches follow one another in an order that a trace does not have, so the requests of a trace are divided
into those of a microbatch and of a step, and put together again. They are those of the longer trace; the shorter one
tells which sizes depend on the length, and how. Few kernels are others for other lengths.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from shoestring.planning.estimate.requests import BATCH_PARTS, Request
from shoestring.planning.trace.record import Phase, Trace

Updates = Sequence[Sequence[float]]
"""The lengths of the microbatches of each update, in order, as shares of the length of the longer trace."""

_TRACED_MICROBATCHES = 2
"""Of each update of a trace (`planning/trace/update.py`); later ones repeat the second."""


@dataclass(frozen=True, kw_only=True)
class VaryingLengths:
    """The lengths of a run's microbatches, as shares of that of its longest samples."""

    shorter: Trace
    """A trace of the same settings for a shorter length."""
    share: float
    """Its length."""
    likely: Updates
    """The lengths of some updates in an order as that of a run."""
    worst: Updates
    """The same in the order that leaves the most blocks that later microbatches do not fit."""


@dataclass(eq=False)
class _Segment:
    """The requests of one microbatch, or of what an update has after its microbatches."""

    requests: list[Request] = field(default_factory=list)
    inherited: dict[object, list[object]] = field(default_factory=dict)
    """What it frees without having allocated it, each with what it frees instead if it follows on another segment than
    in the trace."""


class VaryingRequests:
    """The requests of the updates of a run, in which each microbatch has its own length."""

    def __init__(self, longer: Sequence[Request], shorter: Sequence[Request], share: float) -> None:
        """`shorter` are the requests of the same settings for a length of a `share` of that of `longer`.

        Raises ValueError for an update that does not consist of the microbatches of one logical shard and a step.
        """
        self._loading, self._updates = _divide(longer)
        self._powers = _powers(longer, shorter, share)
        self._sizes = lru_cache(maxsize=1024)(self._sizes_at)

    def of_updates(self, updates: Updates) -> Iterator[Request]:
        """Yield the requests of loading and of these updates. The first creates the optimizer's states."""
        serial = 0
        current: dict[object, tuple[object, int]] = {}
        for segment, length in self._in_order(updates):
            # Before the segment allocates: what it frees of others may have the key of what it allocates itself.
            inherited = {
                key: next((current.pop(name) for name in (key, *alternatives) if name in current), None)
                for key, alternatives in segment.inherited.items()
            }
            for request, size in zip(segment.requests, self._sizes(segment, length), strict=True):
                if size is not None:
                    serial += 1
                    current[request.key] = request.key, serial
                    yield Request(current[request.key], request.part, size, request.stream)
                elif not request.part:
                    yield request
                elif instance := inherited.pop(request.key, None) or current.pop(request.key, None):
                    yield Request(instance, request.part, None)

    def _in_order(self, updates: Updates) -> Iterator[tuple[_Segment, float]]:
        yield self._loading, 1.0
        for number, lengths in enumerate(updates):
            microbatches, step = self._updates[min(number, 1)]
            for index, length in enumerate(lengths):
                yield microbatches[min(index, len(microbatches) - 1)], length
            yield step, 1.0

    def _sizes_at(self, segment: _Segment, length: float) -> list[int | None]:
        """Return the bytes of the requests of a microbatch of this length."""
        return [
            size and max(1, round(size * length ** self._powers[request.part, size])) if length != 1.0 else size
            for request in segment.requests
            for size in (request.bytes,)
        ]


def _powers(longer: Sequence[Request], shorter: Sequence[Request], share: float) -> dict[tuple[str, int | None], int]:
    """Return the power of the length that each size of each part is in proportion to.

    The scores of attention, for example, are in proportion to its square. A power is likely if the shorter trace has as
    many requests of the size that follows from it. Where none is, the size of a part of the batch is taken to be in
    proportion to the length, as that of logits for all tokens but the first of each sample almost is.
    """
    counts, shorter_counts = (
        Counter((request.part, request.bytes) for request in all_requests if request.bytes is not None)
        for all_requests in (longer, shorter)
    )
    powers: dict[tuple[str, int | None], int] = {}
    for (part, size), count in counts.items():
        assert size is not None
        if part not in BATCH_PARTS:
            powers[part, size] = 0
            continue
        matching = {power: shorter_counts[part, round(size * share**power)] for power in (1, 2, 0)}
        best = max(matching, key=lambda power: min(matching[power], count))
        powers[part, size] = best if matching[best] else 1
    return powers


def _divide(all_requests: Sequence[Request]) -> tuple[_Segment, tuple[tuple[list[_Segment], _Segment], ...]]:
    """Divide the requests into those of loading, and those of the microbatches and the step of two updates."""
    loading = segment = _Segment()
    updates: tuple[tuple[list[_Segment], _Segment], ...] = (([], _Segment()), ([], _Segment()))
    for request in all_requests:
        if isinstance(phase := request.key, Phase) and phase.name not in ("model", "backward"):
            microbatches, step = updates[phase.update]
            if phase.name != "forward":
                segment = step
            elif step.requests or len(microbatches) == _TRACED_MICROBATCHES:
                raise ValueError("an update of several stages or logical shards")
            else:
                segment = _Segment()
                microbatches.append(segment)
        segment.requests.append(request)
    if not all(microbatches for microbatches, _ in updates):
        raise ValueError("the trace has no second update")
    sizes = {request.key: request.bytes for request in all_requests if request.bytes is not None}
    for microbatches, step in updates:
        of_one_microbatch = [[first[0], last] for first, last in ((microbatches, step), updates[0])]
        microbatches[0].inherited = _inherited(microbatches[0], [[*microbatches, step], *of_one_microbatch], sizes)
        for later in microbatches[1:]:
            later.inherited = _inherited(later, [[later]], sizes)
        step.inherited = _inherited(step, [[microbatches[0]]], sizes)
    return loading, updates


def _inherited(
    segment: _Segment, predecessors: Sequence[Sequence[_Segment]], sizes: Mapping[object, int]
) -> dict[object, list[object]]:
    """Return what the segment frees of others; each with what it frees instead after each of the `predecessors`: the
    storage of the same bytes and part that is left of them, in order of allocation.
    """
    own = {request.key for request in segment.requests if request.bytes is not None}
    keys = [request.key for request in segment.requests if request.bytes is None and request.part]
    inherited: dict[object, list[object]] = {key: [] for key in keys if key not in own}
    parts = {request.key: request.part for request in segment.requests}
    for segments in predecessors:
        left = _left(segments)
        for key, alternatives in inherited.items():
            if candidates := left.get((parts[key], sizes[key])):
                alternatives.append(candidates.pop(0))
    return inherited


def _left(segments: Sequence[_Segment]) -> dict[tuple[str, int], list[object]]:
    """Return the keys of what the segments allocate and do not free, by part and bytes."""
    all_requests = [request for segment in segments for request in segment.requests]
    freed = {request.key for request in all_requests if request.bytes is None}
    left: dict[tuple[str, int], list[object]] = defaultdict(list)
    for request in all_requests:
        if request.bytes is not None and request.key not in freed:
            left[request.part, request.bytes].append(request.key)
    return left
