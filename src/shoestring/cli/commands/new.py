"""The commands `shoestring new ...`: something to begin with."""

from typing import Annotated

import typer

from shoestring import api
from shoestring.cli.config import Command
from shoestring.cli.options import Json, examples
from shoestring.cli.output import print_answer

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode="rich", help="Begin a recipe.")


@app.callback()
def _group() -> None:
    """Make `recipe` a command of its own, although it is the only one."""


@app.command(cls=Command, epilog=examples("new recipe my_recipe"))
def recipe(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the recipe, of letters, digits and _.")],
    as_json: Json = False,
) -> None:
    """Write NAME.py, a commented recipe that runs, into this folder."""
    from shoestring.answers.new_recipe import document

    written = api.new_recipe(name)
    print_answer(written.json(), as_json, lambda: document(written))
