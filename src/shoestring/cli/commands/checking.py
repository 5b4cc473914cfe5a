"""What this machine can do: its check, and files with its rates or with the lengths of data."""

from pathlib import Path
from typing import Annotated, Any

import typer

from shoestring import api
from shoestring.base.errors import UsageError
from shoestring.cli import completion
from shoestring.cli.config import Config
from shoestring.cli.options import Json, On, Set, option_values
from shoestring.cli.output import print_answer, show_progress, show_seconds_left


def check(
    recipe: Annotated[
        str | None,
        typer.Argument(
            metavar="RECIPE", help="Run a few of its updates on this machine.", autocompletion=completion.recipe
        ),
    ] = None,
    on: On = "local",
    run: Annotated[
        Path,
        typer.Option(
            "--run", metavar="DIR", help="The directory for the run.", autocompletion=completion.run_directory
        ),
    ] = Path("runs"),
    measure: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Instead of checking, measure the rates of the GPU (2 min) or the CPU (40 s) and write this .json.",
        ),
    ] = None,
    lengths: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Instead of checking, count the lengths of RECIPE's samples into this .json, for plans elsewhere.",
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an older file of --measure or --lengths.")
    ] = False,
    set_: Set = None,
    config_file: Config = None,
    as_json: Json = False,
) -> None:
    """Check this machine before a run: GPU, build, memory, disk, data, internet. The status is 1 if a check fails.

    With --measure, write the rates of its GPU to a file that --on and --calibrate take; with --lengths, the lengths of
    the recipe's samples to a file for --set lengths=FILE.
    """
    from shoestring.answers.check import document

    if lengths is not None:
        if recipe is None or measure is not None:
            hint = f"shoestring check RECIPE --lengths {lengths}"
            raise UsageError("--lengths needs a recipe, and no --measure", hint=hint)
        _write_lengths(recipe, lengths, overwrite, option_values(api.write_lengths, set_, config_file), as_json)
        return
    if measure is not None:
        _measure(measure, on, [recipe or "", *(f"--set {pair}" for pair in set_ or ())], overwrite, as_json)
        return
    if overwrite:
        raise UsageError("--overwrite is an option of --measure and --lengths", hint="leave it out")
    with show_progress(f"checking this machine{f' and running a few updates of {recipe}' if recipe else ''}"):
        checked = api.check(recipe, on, run=run, **option_values(api.check, set_, config_file))
    print_answer(checked.json(), as_json, lambda: document(checked))
    if checked.status == "fail":
        raise typer.Exit(1)


def _write_lengths(recipe: str, file: Path, overwrite: bool, values: dict[str, Any], as_json: bool) -> None:
    """Write the lengths of the recipe's samples to `file`."""
    from shoestring.answers.lengths import document

    with show_seconds_left(f"reading the data of {recipe}") as progress:
        lengths = api.write_lengths(recipe, file, overwrite=overwrite, progress=progress, **values)
    print_answer(lengths.json(), as_json, lambda: document(recipe, file, lengths))


def _measure(file: Path, on: str, check_arguments: list[str], overwrite: bool, as_json: bool) -> None:
    """Measure this machine; `check_arguments` are arguments that only a check has."""
    from shoestring.answers.measured import document

    if extra := " ".join(filter(None, check_arguments)):
        raise UsageError(
            f"--measure measures the machine alone, without {extra}", hint=f"shoestring check --measure {file}"
        )
    with show_seconds_left("measuring the rates of this machine") as progress:
        measured = api.measure(file, on, overwrite=overwrite, progress=progress)
    print_answer(measured.json(), as_json, lambda: document(measured))
