"""The numbers of updates and epochs of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shoestring.recipe.options import LoadedRecipe


@dataclass(frozen=True, kw_only=True)
class Counts:
    """What a run has; the numbers of a recipe without data are those of an epoch of one update."""

    samples: Mapping[str, int]
    """The samples in each part of the data; empty without data."""
    per_epoch: int | None
    """The updates of an epoch; None without data."""
    total: int
    """The updates of the run."""
    epochs: int
    """The epochs of the run, of which the option `max_updates` may cut the last."""

    @classmethod
    def from_recipe(cls, loaded: LoadedRecipe, samples: Mapping[str, int] | None) -> Counts:
        """Return the numbers of a run of the recipe with so many samples; None without data."""
        per_epoch = loaded.updates_per_epoch(samples["train"]) if samples else None
        total = loaded.total_updates(per_epoch or 1)
        epochs = -(-total // per_epoch) if per_epoch else loaded.epochs
        return cls(samples=samples or {}, per_epoch=per_epoch, total=total, epochs=epochs)
