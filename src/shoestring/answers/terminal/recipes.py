"""The recipes of installed packages as a table, and the options of one recipe in groups."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from shoestring.answers.terminal.elements import grid
from shoestring.base import config
from shoestring.base.settings import Settings
from shoestring.base.streams import one_line
from shoestring.recipe.installed import BUILT_IN
from shoestring.recipe.options import Adaptation

_FIRST = ("size", "architecture", "model", "data", "epochs", "effective_batch", "subset")
"""Options that a first run needs, whichever recipe has them."""


def table(recipes: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Return one line for each recipe."""
    rows = grid()
    for recipe in recipes:
        text = f"cannot be used: {recipe['problem']}" if recipe["problem"] else recipe["summary"]
        origin = "" if recipe["origin"] == BUILT_IN else f" ({recipe['origin']})"
        rows.add_row(Text(one_line(recipe["name"]), style="bold"), Text(one_line(text + origin)))
    return Group(
        rows,
        Text(),
        Text("shoestring recipes NAME lists the options of a recipe. A recipe of your own is path/to/file.py with"),
        Text("model(), batch(size), loss(model, batch) and data(); a Hugging Face model is hf:path/to/config.json."),
    )


def options(recipe: Mapping[str, Any]) -> RenderableType:
    """Return the options of a recipe and the settings, those that a first run needs first."""
    adaptation = config.fields(Adaptation)
    first: list[Mapping[str, Any]] = []
    own: list[Mapping[str, Any]] = []
    memory: list[Mapping[str, Any]] = []
    for option in recipe["options"]:
        is_first, is_memory = option["name"] in _FIRST, option["name"] in adaptation
        (first if is_first else memory if is_memory else own).append(option)
    first.sort(key=lambda option: _FIRST.index(option["name"]))
    settings = [
        {"name": field.name, "default": field.default, "help": field.help, "expected": field.expected()}
        for field in config.fields(Settings).values()
    ]
    return Group(
        Text.assemble((one_line(recipe["name"]), "bold"), "  ", recipe["summary"]),
        *_group("Options to start with", first),
        *_group("Options of the model and its training", own),
        *_group("Options that save memory and change the training result", memory),
        *_group("Settings, which do not change the training result beyond rounding", settings),
        Text("\nEach is set by --set KEY=VALUE."),
    )


def _group(title: str, options: Iterable[Mapping[str, Any]]) -> list[RenderableType]:
    rows: Table = grid()
    for option in options:
        default = "" if option["default"] is None else option["default"]
        rows.add_row(f"  {option['name']}={default}", f"{option['help']} ({option['expected']})")
    return [Text(f"\n{title}", style="bold"), rows] if rows.row_count else []
