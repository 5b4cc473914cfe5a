"""A LightningModule as a recipe, without Lightning's Trainer."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, ClassVar

from shoestring.integrations.lightning import arguments, loaders
from shoestring.integrations.lightning.adapter import LightningRecipe
from shoestring.recipe.lightning import is_data_module, overrides


def recipe(module: Any, data_module: Any = None) -> LightningRecipe:
    """Return the recipe of a LightningModule that exists, with its weights as the initial ones."""
    source = data_module if data_module is not None else module
    live = LightningRecipe(lambda _: copy.deepcopy(module), lambda _: source, type(module))
    if loaders.defines(source, "train"):
        live.effective_batch = live.loader_batch_size
    return live


def recipe_class(kind: type, neighbours: Iterable[object] = ()) -> type[LightningRecipe]:
    """Return the recipe class of a LightningModule, whose options are its constructor's arguments.

    If it has no dataloaders and the `neighbours` have exactly one LightningDataModule, the data is that one's.
    """
    data_kind = kind
    if not overrides(kind, "train_dataloader"):
        candidates: list[Any] = [item for item in neighbours if is_data_module(item)]
        data_kind = candidates[0] if len(candidates) == 1 else kind
    kinds = list(dict.fromkeys((kind, data_kind)))
    options_type = arguments.make_options(kinds)

    class Recipe(LightningRecipe):
        __doc__ = kind.__doc__ if kind.__doc__ != kind.__mro__[1].__doc__ else f"The LightningModule {kind.__name__}."
        Options: ClassVar[type] = options_type

        def __init__(self, options: Any = None) -> None:
            self.options = options if options is not None else options_type()
            values = vars(self.options)
            super().__init__(
                lambda effective_batch: arguments.call(kind, values, effective_batch),
                lambda effective_batch: arguments.call(data_kind, values, effective_batch),
                kind,
            )

    Recipe.__name__ = Recipe.__qualname__ = kind.__name__
    size = _batch_size(Recipe, kinds)
    Recipe.assumes_batch_size = size is None
    Recipe.effective_batch = size or LightningRecipe.effective_batch
    return Recipe


def _batch_size(recipe: type[Any], kinds: Iterable[type]) -> int | None:
    """Return the default of the argument `batch_size`, or else the batch size of the dataloader; None if unknown."""
    for kind in kinds:
        parameter = arguments.arguments_of(kind).get(arguments.BATCH_SIZE)
        if parameter and isinstance(parameter.default, int):
            return parameter.default
    try:
        size: int = recipe().loader_batch_size
    except Exception:  # noqa: BLE001  (the user's code raises anything)
        # The data may need an option that is not set yet. What is wrong is reported when it is used.
        return None
    return size
