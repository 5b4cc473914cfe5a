"""The screen of `shoestring new recipe`."""

from rich.console import Group, RenderableType
from rich.text import Text

from shoestring.recipe.new import NewRecipe


def screen(written: NewRecipe) -> RenderableType:
    """Name the file, and the commands that use it."""
    return Group(
        Text(f"{written.path}: a recipe that runs; its comments say what each part is for"),
        *(Text(f"  {command}") for command in written.commands),
    )
