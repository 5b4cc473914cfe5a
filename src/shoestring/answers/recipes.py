"""The recipes of installed packages as a table, and the options of one recipe in groups."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from shoestring.answers.document import GAP, Column, Document, Paragraph, Section, Span, Table
from shoestring.base import config
from shoestring.base.settings import Settings
from shoestring.recipe.adaptation import Adaptation
from shoestring.recipe.installed import BUILT_IN

_FIRST = ("size", "architecture", "model", "data", "epochs", "effective_batch", "subset")
"""Options that a first run needs, whichever recipe has them."""


def table(recipes: Sequence[Mapping[str, Any]]) -> Document:
    """Return one line for each recipe, with the package of those that are not built in."""
    rows = [(Span(recipe["name"], "strong"), _summary(recipe)) for recipe in recipes]
    return Document(
        title="Recipes",
        sentences=[],
        content=[
            Table([Column(), Column()], rows),
            GAP,
            Paragraph(
                "shoestring recipes NAME lists the options of a recipe. A recipe of your own is path/to/file.py with"
            ),
            Paragraph(
                "model(), batch(size), loss(model, batch) and data(); a Hugging Face model is hf:path/to/config.json."
            ),
        ],
    )


def _summary(recipe: Mapping[str, Any]) -> str:
    if recipe["problem"]:
        return f"cannot be used: {recipe['problem']}"
    summary, origin = str(recipe["summary"]), str(recipe["origin"])
    return summary if origin == BUILT_IN or origin.endswith(".py") else f"{summary} ({origin})"


def options(recipe: Mapping[str, Any]) -> Document:
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
        for field in Settings.fields().values()
    ]
    groups: dict[str, Sequence[Mapping[str, Any]]] = {
        "Options to start with": first,
        "Options of the model and its training": own,
        "Options that save memory and change the training result": memory,
        "Settings, which do not change the training result beyond rounding": settings,
    }
    return Document(
        title=recipe["name"],
        subtitle=recipe["summary"],
        sentences=[[Span(recipe["name"], "strong"), "  ", _summary(recipe)]],
        content=[
            *(Section(title, [_options(group)]) for title, group in groups.items() if group),
            GAP,
            Paragraph("Each is set by --set KEY=VALUE."),
        ],
    )


def _options(options: Iterable[Mapping[str, Any]]) -> Table:
    rows = []
    for option in options:
        default = "" if option["default"] is None else option["default"]
        rows.append((f"  {option['name']}={default}", f"{option['help']} ({option['expected']})"))
    return Table([Column(), Column()], rows)
