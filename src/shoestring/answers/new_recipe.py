"""A new recipe's file."""

from shoestring.answers.document import Command, Document
from shoestring.recipe.new import NewRecipe


def document(written: NewRecipe) -> Document:
    """Return the file, and the commands that use it."""
    return Document(
        title=written.path,
        sentences=[f"{written.path}: a recipe that runs; its comments say what each part is for"],
        content=[Command(command) for command in written.commands],
    )
