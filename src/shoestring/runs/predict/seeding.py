"""The random numbers of predictions: each input and each batch has its own, whatever was predicted before."""

from collections.abc import Callable
from functools import partial
from typing import Any

from shoestring.runs.model import Model
from shoestring.training.data.own_generators import LazyGenerators
from shoestring.training.data.seeding import derive, seed_host


class PredictionSeeds:
    """Seeds the global generators, and those that a data set, a recipe and its model hold."""

    def __init__(self, model: Model) -> None:
        self._seed = model.run.loaded.seed
        self._recipe = {"recipe": model.run.loaded.recipe, "model": model.module}
        self._of_recipe, self._of_inputs = LazyGenerators(), LazyGenerators()
        self._inputs: dict[str, Any] = {}

    def seed_input(self, load: Callable[[], Any] | None, position: int) -> None:
        """Seed what `load` draws, which fetches the input at this position."""
        value = derive(self._seed, "sample", 0, position)
        seed_host(value)
        source = getattr(load.func, "__self__", None) if isinstance(load, partial) else None
        if not self._inputs or (source is not None and source is not self._inputs["dataset"]):
            self._inputs, self._of_inputs = {"dataset": load if source is None else source}, LazyGenerators()
        self._of_inputs.search(**self._inputs).seed(value)

    def seed_batch(self, number: int) -> None:
        """Seed what `collate` and `predict` draw for this batch."""
        self._of_recipe.search(**self._recipe).seed_all(derive(self._seed, "prediction", number))

    def has_new(self) -> bool:
        """Return after the first batch whether it has created generators, which were not seeded."""
        of_inputs = bool(self._inputs) and self._of_inputs.has_new(**self._inputs)
        return self._of_recipe.has_new(**self._recipe) or of_inputs
