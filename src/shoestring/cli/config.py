"""The option `--config` of the commands that take a recipe: a file provides what the command line leaves out."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from shoestring import api
from shoestring.base import streams

_LOCAL_TARGETS = ("local", "cpu")
"""The targets of commands that use saved weights; in a file, the target of their training is no error."""


class Command(TyperCommand):
    """A command that takes the values of `--config`, and writes nothing but its answer to standard output."""

    def invoke(self, ctx: Any) -> Any:
        with values_of(ctx), streams.reserved_for_answers():
            return super().invoke(ctx)


@contextmanager
def values_of(ctx: Any) -> Iterator[None]:
    """Name the configuration file in errors about its values. A recipe that only the file names is verified first."""
    file = ctx.params.get("config_file")
    if file is None:
        yield
        return
    with file.naming_in_errors(ctx.params.get("set_") or ()):
        source = ctx.get_parameter_source("recipe")
        if source and source.name == "DEFAULT_MAP":
            runs = [Path(ctx.params[name]) for name in ("directory", "run") if ctx.params.get(name)]
            option = "--recipe " if _uses_weights(ctx.command) else ""
            ctx.params["recipe"] = file.verified_recipe(runs, option=option)
        yield


def _provide_values(ctx: typer.Context, file: Any) -> Any:  # typer evaluates the annotations
    """Make the values of the file the defaults of the command's other parameters."""
    if file is not None:
        values: dict[str, Any] = {name: getattr(file, name) for name in ("recipe", "on", "limit", "disk")}
        if _uses_weights(ctx.command) and file.on not in _LOCAL_TARGETS:
            values["on"] = None
        parameters = {parameter.name: parameter for parameter in ctx.command.params}
        ctx.default_map = {
            name: [value] if getattr(parameters[name], "multiple", False) else value
            for name, value in values.items()
            if value is not None and name in parameters
        }
    return file


def _uses_weights(command: Any) -> bool:
    """Return whether the command uses the weights of a run, whose plan names its recipe."""
    return any(parameter.name == "recipe" and parameter.param_type_name == "option" for parameter in command.params)


Config = Annotated[
    Any,
    typer.Option(
        "--config",
        metavar="FILE",
        parser=lambda text: api.config_file(Path(text)),
        callback=_provide_values,
        is_eager=True,
        help="A TOML file with recipe, on, limit, disk and the table set; flags win. Each run has one: run.toml.",
    ),
]
