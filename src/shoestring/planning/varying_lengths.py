"""The memory of settings whose microbatches differ in length, as samples of different lengths do.

A trace is of samples of the largest length. How much CUDA's caching allocator reserves depends on all lengths and on
their order: blocks of one length do not fit the next one. Expandable segments do not leave such blocks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from shoestring.base.errors import ShoestringError
from shoestring.base.settings import Settings
from shoestring.base.units import bytes_text
from shoestring.hardware.catalog import Target
from shoestring.planning.candidates import Candidate, memory_of, trace_settings
from shoestring.planning.estimate.lengths import Updates, VaryingLengths
from shoestring.planning.load import microbatch_lengths, sorts_samples
from shoestring.planning.trace import Tracer
from shoestring.recipe.options import LoadedRecipe

SHORTER = 0.625
"""The length of the second trace, as a share of the largest: far enough from it, and with kernels of the same kind."""
_EVENTS = 250_000
"""The events of a trace that the replayed updates have together, which takes a second or two."""
_LEAST_UPDATES = 4
_FLAT = 1.15
"""Reserved over allocated memory, at the high ends of both, up to which the allocator's default segments are taken."""
_MOST_CANDIDATES = 3
"""The candidates whose memory is predicted for all lengths, in the order of their rank, until one fits."""


def with_lengths(tracer: Tracer, loaded: LoadedRecipe, target: Target, candidate: Candidate) -> Candidate:
    """Return the candidate with the memory of microbatches of the lengths of its data; as it is, if they have one."""
    lengths = find_lengths(tracer, loaded, target, candidate)
    return _with_memory(candidate, loaded, target, lengths) if lengths else candidate


def choose_allocator(
    tracer: Tracer, loaded: LoadedRecipe, target: Target, ranked: Sequence[Candidate], requested: Settings
) -> tuple[list[Candidate], list[str]]:
    """Return the candidates in their order, but first the one that fits with samples of all lengths, and why its
    segments are expandable.

    Expandable segments are chosen if PyTorch's default ones would leave much memory that no tensor fits.
    """
    ranked = [
        dataclasses.replace(item, settings=item.settings.replace(allocator=requested.allocator or "segments"))
        for item in ranked
    ]
    first: tuple[Candidate, list[str]] | None = None
    for candidate in ranked[:_MOST_CANDIDATES]:
        lengths = find_lengths(tracer, loaded, target, candidate) if candidate.fits else None
        if lengths is None:
            return ranked, []
        adjusted, sentences = _with_allocator(candidate, loaded, target, requested, lengths)
        first = first or (adjusted, sentences)
        if adjusted.fits:
            return [adjusted, *(item for item in ranked if item is not candidate)], sentences
    if first is None:
        return ranked, []
    return [first[0], *ranked[1:]], first[1]


def _with_allocator(
    candidate: Candidate, loaded: LoadedRecipe, target: Target, requested: Settings, lengths: VaryingLengths
) -> tuple[Candidate, list[str]]:
    by_default = _with_memory(candidate, loaded, target, lengths)
    memory = by_default.memory
    is_flat = by_default.fits and memory.reserved.high <= _FLAT * memory.allocated.high
    if requested.allocator or is_flat or candidate.settings.cuda_graphs:
        return by_default, []
    settings = candidate.settings.replace(allocator="expandable")
    expandable = _with_memory(dataclasses.replace(candidate, settings=settings), loaded, target, lengths)
    if expandable.memory.reserved.value >= memory.reserved.value and expandable.fits <= by_default.fits:
        return by_default, []
    sentence = (
        "allocator expandable: samples of different lengths leave blocks in PyTorch's default segments that later ones "
        f"do not fit: {bytes_text(memory.reserved.value)} would be reserved, or up to "
        f"{bytes_text(memory.reserved.high)}, for {bytes_text(memory.allocated.value)} of tensors; in expandable "
        f"segments {bytes_text(expandable.memory.reserved.value)}"
    )
    return expandable, [sentence]


def _with_memory(candidate: Candidate, loaded: LoadedRecipe, target: Target, lengths: VaryingLengths) -> Candidate:
    """Return the candidate with the memory of these lengths; as it is, if their kernels differ from the longest's."""
    try:
        memory = memory_of(candidate.trace, loaded, target, candidate.settings, lengths)
    except ValueError:
        return candidate
    return dataclasses.replace(candidate, memory=memory)


def find_lengths(tracer: Tracer, loaded: LoadedRecipe, target: Target, candidate: Candidate) -> VaryingLengths | None:
    """Return the lengths of the microbatches of some updates, with a trace of a shorter length.

    None if all have one length, or nothing is known of them, or the recipe has no option of the length, or an update is
    of several stages.
    """
    data, trace = loaded.parts.data, candidate.trace
    updates = microbatch_lengths(loaded, tracer.facts, candidate.settings, trace.micro_batch)
    if target.device.kind == "cpu" or not data.length_option or data.capacity is None or trace.stages > 1:
        return None
    if len({length for update in updates for length in update}) < 2:
        return None
    shorter = max(1, round(data.capacity * SHORTER))
    try:
        short_trace = trace_settings(tracer, loaded, target, candidate.settings, {str(data.length_option): shorter})
    except ShoestringError:
        return None
    events = sum(map(len, updates)) * len(trace.events) / (2 * trace.microbatches)
    count = max(_LEAST_UPDATES, round(len(updates) * min(1.0, _EVENTS / events)))
    likely = updates[:count]
    worst = worst_order(likely, sorts=sorts_samples(loaded))
    return VaryingLengths(shorter=short_trace, share=shorter / data.capacity, likely=likely, worst=worst)


def worst_order(updates: Updates, *, sorts: bool = True) -> Updates:
    """Return the updates with the shortest first: each longer one finds only blocks that are too small for it.

    An update that `sorts` its samples begins with its longest ones; in another the shortest may come first too.
    """
    return sorted(updates if sorts else [sorted(update) for update in updates], key=max)
