"""What can be trained, and what can be set."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from shoestring import config
from shoestring.report.terminal.elements import grid
from shoestring.settings import Settings


def screen(recipes: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Of each recipe its own options, then those of any, then settings."""
    shared = {option["name"]: option for recipe in recipes for option in recipe["options"] if not option["own"]}
    settings = [
        {"name": field.name, "default": field.default, "help": field.help, "expected": field.expected()}
        for field in config.fields(Settings).values()
    ]
    parts: list[RenderableType] = []
    for recipe in recipes:
        own = [option for option in recipe["options"] if option["own"]]
        parts += [Text.assemble((recipe["name"], "bold"), "  ", recipe["summary"]), _choices(own)]
    parts += [Text("any recipe", style="bold"), _choices(shared.values())]
    parts += [Text("settings, which do not change what is learnt", style="bold"), _choices(settings)]
    parts.append(Text("a recipe of your own: path/to/file.py with model(), batch(size), loss(model, batch) and data()"))
    return Group(*parts)


def _choices(options: Iterable[Mapping[str, Any]]) -> Table:
    table = grid()
    for option in options:
        default = "" if option["default"] is None else option["default"]
        table.add_row(f"  {option['name']}={default}", f"{option['help']} ({option['expected']})")
    return table
