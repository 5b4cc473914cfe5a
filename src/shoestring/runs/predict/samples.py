"""The samples of a recipe's data as inputs of predictions."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from shoestring.recipe.inputs import Input
from shoestring.recipe.options import LoadedRecipe
from shoestring.recipe.subset import Subset
from shoestring.training.data.seeded import seeded_data


def labeled_inputs(loaded: LoadedRecipe, dataset: Any) -> Iterator[Input]:
    """Yield the samples of a part, with their identifiers in the whole dataset, of which it may have only some."""
    identify = loaded.parts.evaluation.identify
    indices: Sequence[int] = range(len(dataset))
    while isinstance(dataset, Subset):
        dataset, indices = dataset.dataset, [dataset.indices[index] for index in indices]
    for index in indices:
        yield Input(id=identify(dataset, index) if identify else index, load=partial(dataset.__getitem__, index))


def samples_of(loaded: LoadedRecipe) -> Iterator[Input]:
    """Yield all samples of the data, each part after the other, with the identifiers that the recipe gives them.

    The models of all folds get the same samples in the same order: the data are not divided for them.
    """
    data = seeded_data(replace(loaded, options={**loaded.options, "fold": None}) if loaded.fold else loaded)
    for dataset in data.values():
        if loaded.parts.evaluation.identify:
            yield from labeled_inputs(loaded, dataset)
        else:
            yield from (Input(load=partial(dataset.__getitem__, index)) for index in range(len(dataset)))
