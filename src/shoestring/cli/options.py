"""Options that several commands have, and the parsing of their values."""

import inspect
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from shoestring.base import config
from shoestring.base.errors import UsageError
from shoestring.cli import completion

T = TypeVar("T")


class Purpose(StrEnum):
    """What a plan is for."""

    TRAIN = "train"
    PREDICT = "predict"


def examples(*lines: str) -> str:
    """Return the end of a command's help: one example per paragraph, since typer joins single lines."""
    return "\n\n".join(["Examples:", *(f"[bold]shoestring {line}[/]" for line in lines)])


Recipe = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE",
        help="The name of a recipe, path/to/file.py, or hf:path/to/config.json.",
        autocompletion=completion.recipe,
    ),
]
On = Annotated[
    str,
    typer.Option(
        "--on",
        metavar="TARGET",
        help="The machine to run on; `shoestring targets` lists them. Also several cards (rtx3090x2), any other GPU "
        "(memory=10GiB,tflops16=60,bandwidth=760), or a file of `shoestring check --measure`.",
        autocompletion=completion.target,
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Set an option of the recipe or a setting; may be repeated. `shoestring recipes RECIPE` lists them.",
        autocompletion=completion.assignment,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]
Probe = Annotated[
    bool | None,
    typer.Option(
        "--probe/--no-probe",
        help="Measure a plan for this machine: make a few updates and discard them. By default, unless "
        "SHOESTRING_PROBE=0 is set.",
        show_default=False,
    ),
]
AllowCpu = Annotated[
    bool,
    typer.Option("--allow-cpu", help="Train on the CPU if --on is a target with a GPU and the machine has none."),
]
RunDir = Annotated[
    Path,
    typer.Option(
        "--run",
        metavar="DIR",
        help="The run's directory. If it contains a run, the run is continued.",
        autocompletion=completion.run_directory,
    ),
]


Saved = Annotated[
    Path,
    typer.Argument(
        metavar="DIR",
        help="A run, its best or light folder, or one of its checkpoints; with --recipe also other weights.",
        autocompletion=completion.run_directory,
    ),
]
OnHere = Annotated[str, typer.Option("--on", metavar="TARGET", help="local, or cpu to leave out the GPU.")]
RecipeOfRun = Annotated[
    str | None,
    typer.Option(
        "--recipe",
        metavar="RECIPE",
        help="The recipe, if its file has moved since the run or if the weights belong to no run.",
        autocompletion=completion.recipe,
    ),
]


def parse(name: str, text: str | None, parse_text: Callable[[str], T]) -> T | None:
    """Return the parsed value of an option, None if it is not set. Raises UsageError if it cannot be parsed."""
    try:
        return None if text is None else parse_text(text)
    except ValueError as error:
        raise UsageError(f"{name}: {error}") from error


def option_values(verb: Callable[..., object], set_: list[str] | None, config_file: Any) -> dict[str, Any]:
    """Return the values of --set as keyword arguments of `verb`, besides the arguments that it names.

    The answer of `api.config_file`, or None, has the values of what --set leaves out.
    """
    values = {**(config_file.values if config_file else {}), **config.parse_pairs(set_ or [])}
    parameters = inspect.signature(verb).parameters.values()
    names = [parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD]
    problems = [
        f"{name}={values[name]}: {name} is an option of the command, not of a recipe"
        for name in names
        if name in values
    ]
    if problems:
        raise UsageError(
            "--set was not understood", problems=problems, hint="see the command's --help for its own options"
        )
    return values
