"""Something to begin with: a new recipe."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os

    from shoestring.recipe.new import NewRecipe


def new_recipe(name: str, folder: str | os.PathLike[str] = ".") -> NewRecipe:
    """Write the file of a new recipe, a commented one that runs, into a folder, and return what was written.

    Raises UsageError if the file exists, and for a name that cannot be that of a module.
    """
    from shoestring.recipe.new import write_recipe

    return write_recipe(name, Path(folder))
