"""Making a recipe's data: the same in every process, also if the recipe draws random numbers for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoestring.recipe.options import LoadedRecipe


def seeded_data(loaded: LoadedRecipe) -> dict[str, Any]:
    """Return `loaded.data()`, with Python's, NumPy's and torch's generators seeded from the run's seed.

    A random split is then the same in each session and in evaluations. The generators are restored afterwards.
    """
    from shoestring.training.data.generators import preserved_generators
    from shoestring.training.data.seeding import derive, seed_host

    with preserved_generators():
        seed_host(derive(loaded.seed, "data"))
        return loaded.data()
