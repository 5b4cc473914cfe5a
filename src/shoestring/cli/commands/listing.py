"""What there is: recipes and targets."""

from typing import Annotated

import typer

from shoestring import api
from shoestring.cli import completion
from shoestring.cli.options import Json
from shoestring.cli.output import print_answer


def recipes(
    recipe: Annotated[
        str | None,
        typer.Argument(metavar="RECIPE", help="List the options of this recipe.", autocompletion=completion.recipe),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the built-in recipes and those of installed packages, or the options of one recipe."""
    from shoestring.answers.recipes import options, table

    recipes = api.recipes(recipe)
    if recipe is None:
        print_answer(recipes, as_json, lambda: table(recipes))
    else:
        print_answer(recipes[0], as_json, lambda: options(recipes[0]))


def targets(as_json: Json = False) -> None:
    """List the targets that a run can be planned for: platforms, GPUs, and this machine."""
    from shoestring.answers.targets import document

    targets = api.targets()
    print_answer([target.json() for target in targets], as_json, lambda: document(targets))
