"""How much of the largest length the samples of an update take, with their padding, sorted by length or packed.

A trace is of samples of the largest length, the recipe's `capacity`. The lengths of the training data tell how many of
them an update would be worth. Updates are drawn from the lengths as training draws them from the data.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from shoestring.base.settings import Settings
from shoestring.planning.length_work import PROPORTIONAL, LengthWork
from shoestring.planning.shares import samples_per_shard
from shoestring.planning.trace.record import Facts
from shoestring.recipe.microbatches import longest_first, pack, split
from shoestring.recipe.options import LoadedRecipe

_UPDATES = 32
"""The number of simulated updates: their mean is within some percent of that of all."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """The mean of a logical shard over updates."""

    samples: int
    microbatches: float
    padded: float
    """The padded length, in samples of the largest length."""
    work: float
    """The work of the padded samples, in that of samples of the largest length."""
    padding: float
    """The share of padding in it."""


def is_packed(settings: Settings) -> bool:
    """Return whether a microbatch counts packed rows instead of samples."""
    return settings.packing == "yes"


def load_of_shard(
    loaded: LoadedRecipe,
    facts: Facts,
    settings: Settings,
    micro_batch: int,
    length_work: LengthWork = PROPORTIONAL,
) -> Load | None:
    """Return the load of the largest logical shard of an update; None without `capacity`, and for unknown lengths."""
    capacity = loaded.parts.data.capacity
    if capacity is None or not facts.sample_lengths:
        return None
    samples = samples_per_shard(loaded.effective_batch, settings)
    sorts = sorts_samples(loaded)
    return _load(facts.sample_lengths, capacity, samples, micro_batch, is_packed(settings), sorts, length_work)


def rows_per_shard(loaded: LoadedRecipe, facts: Facts, settings: Settings) -> int:
    """Return how many samples, or packed rows, the largest logical shard of an update has; no microbatch has more."""
    samples, capacity = samples_per_shard(loaded.effective_batch, settings), loaded.parts.data.capacity
    if capacity is None or not facts.sample_lengths or not is_packed(settings):
        return samples
    return _most_rows(facts.sample_lengths, capacity, samples)


def microbatch_lengths(loaded: LoadedRecipe, facts: Facts, settings: Settings, micro_batch: int) -> list[list[float]]:
    """Return the lengths to which the microbatches of a logical shard are padded in some updates, as shares of the
    largest length; none without `capacity`, and for unknown lengths, or those of samples that the recipe makes up.
    """
    capacity, lengths = loaded.parts.data.capacity, facts.sample_lengths
    if capacity is None or not lengths or (loaded.parts.data.has_synthetic_lengths and not loaded.absent_data):
        return []
    samples = samples_per_shard(loaded.effective_batch, settings)
    updates = _updates(lengths, capacity, samples, sorts_samples(loaded))
    shards = [_rows(update, capacity) if is_packed(settings) else list(update) for update in updates]
    # An epoch has the longest of the samples too.
    middle = shards[len(shards) // 2]
    middle[middle.index(max(middle))] = min(max(lengths), capacity)
    return [[max(part) / capacity for part in split(shard, micro_batch)] for shard in shards]


def sorts_samples(loaded: LoadedRecipe) -> bool:
    """Return whether an update begins with its longest samples, as the engine's; other loops take them as they come."""
    return loaded.parts.learning.trainer is None and not loaded.parts.learning.other_loop


@lru_cache(maxsize=1024)
def _load(
    lengths: tuple[float, ...],
    capacity: float,
    samples: int,
    micro_batch: int,
    packed: bool,
    sorts: bool,
    length_work: LengthWork,
) -> Load:
    total, microbatches, filled, work = 0.0, 0, 0.0, 0.0
    updates = _updates(lengths, capacity, samples, sorts)
    for update in updates:
        parts = split(_rows(update, capacity) if packed else update, micro_batch)
        total += sum(len(part) * max(part) for part in parts)
        work += sum(len(part) * length_work.share(max(part) / capacity) for part in parts)
        filled += sum(update)
        microbatches += len(parts)
    count = len(updates)
    return Load(
        samples=samples,
        microbatches=microbatches / count,
        padded=total / (capacity * count),
        work=work / count,
        padding=1 - filled / total,
    )


@lru_cache(maxsize=64)
def _most_rows(lengths: tuple[float, ...], capacity: float, samples: int) -> int:
    return max(len(_rows(update, capacity)) for update in _updates(lengths, capacity, samples, True))


def _rows(update: Sequence[float], capacity: float) -> list[float]:
    """Return the filled lengths of the packed rows of an update."""
    rows = pack(range(len(update)), update.__getitem__, capacity)
    return [sum(update[index] for index in row) for row in rows]


@lru_cache(maxsize=64)
def _updates(lengths: tuple[float, ...], capacity: float, samples: int, sorts: bool) -> list[list[float]]:
    """Return the lengths of the samples of some updates: the longest first if an update `sorts` them."""
    draw = random.Random(0)
    updates = []
    for _ in range(_UPDATES):
        update = [min(length, capacity) for length in draw.choices(lengths, k=samples)]
        order = longest_first(range(samples), update.__getitem__) if sorts else range(samples)
        updates.append([update[index] for index in order])
    return updates
