"""Notebooks for those who click."""

from pathlib import Path
from typing import Annotated

import typer

from shoestring import api
from shoestring.cli.config import Config
from shoestring.cli.options import AllowCpu, Json, Recipe, Set, option_values
from shoestring.cli.output import print_answer


def notebook(
    recipe: Recipe,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="The folder for the two files.")],
    on: Annotated[
        str,
        typer.Option("--on", metavar="TARGET", help="The machine of Kaggle or Colab; `shoestring targets` lists them."),
    ] = "kaggle-t4x2",
    user: Annotated[str, typer.Option(metavar="NAME", help="Your account on Kaggle, for the metadata.")] = "USER",
    internet: Annotated[
        bool,
        typer.Option(
            "--internet/--no-internet",
            help="Whether the session has internet. Without it, DIR also gets wheels of what the image lacks.",
        ),
    ] = True,
    allow_cpu: AllowCpu = False,
    set_: Set = None,
    config_file: Config = None,
    as_json: Json = False,
) -> None:
    """Write a notebook that checks, plans, trains and reports on Kaggle or Colab, for those who click.

    DIR gets notebook.ipynb and kernel-metadata.json, ready for `kaggle kernels push -p DIR`.
    """
    from shoestring.answers.notebook_files import document

    values = option_values(api.notebook, set_, config_file)
    written = api.notebook(recipe, on, out=out, user=user, internet=internet, allow_cpu=allow_cpu, **values)
    print_answer(written.json(), as_json, lambda: document(written))
