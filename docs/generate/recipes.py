"""The page of the built-in recipes and their options."""

from collections.abc import Iterable, Mapping
from typing import Any

from docs.generate.docstrings import attributes
from docs.generate.markdown import code, escape, header, paragraph, table
from docs.generate.settings import section, value_text

from shoestring.base import config
from shoestring.recipe.absent_data import AbsentData
from shoestring.recipe.adaptation import Adaptation
from shoestring.recipe.finding import find
from shoestring.recipe.folds import FoldOption
from shoestring.recipe.installed import built_in_names
from shoestring.recipe.options import Common, LoadedRecipe, option_fields, own_fields, size_defaults

_INTRODUCTION = """
`shoestring recipes` lists the recipes, and `shoestring recipes NAME` the options of one. An option changes the training
result, so the plan never chooses it; it may propose one. [Settings](settings.md) do not change it. Options are set by
`--set KEY=VALUE`, by the table `[set]` of a [configuration file](index.md#configuration-file), and by a keyword
argument in Python. A run stores its options: continuing it needs no `--set`, and other values are refused.

[The recipes in detail](../explanation/recipes.md) describes their data, models and results.
"""
_EVERY = """## Options of every recipe
Every recipe has these options, also [one of your own](../guides/recipe.md). A recipe may have another default,
which its section names, or an option of its own in place of one of these.
"""
_ABSENT = """## Options of plans for data elsewhere
With these options `plan`, `estimate`, `kaggle start` and `notebook` plan data that are not on this machine. A run has
none of them. [Data that is not here](../guides/data.md#data-that-is-not-here) shows their use; a row is:

{rows}
"""
_ADAPTATION = """## Options that adapt the model
These options adapt the model and the optimizer of any recipe after they are built. By default nothing is adapted.
"""


def page() -> str:
    """Return the page with a section for each built-in recipe, and the options that all recipes have."""
    recipes = [find(name) for name in built_in_names()]
    overview = table(
        ("recipe", "summary"), ((f"[`{loaded.name}`](#{loaded.name})", escape(_summary(loaded))) for loaded in recipes)
    )
    parts = [header("Built-in recipes") + overview, _INTRODUCTION.strip("\n"), ""]
    parts += [_section(loaded) for loaded in recipes]
    rows = table(("recipe", "a row", "its samples"), (_row(loaded) for loaded in recipes))
    absent = _ABSENT.replace("{rows}", rows.rstrip("\n"))
    for introduction, cls in ((_EVERY, Common), ("", FoldOption), (absent, AbsentData), (_ADAPTATION, Adaptation)):
        documented = attributes(cls)
        parts += [introduction] if introduction else []
        parts += [section(field, documented[name].docstring, level="###") for name, field in config.fields(cls).items()]
    return "\n".join(parts)


def _row(loaded: LoadedRecipe) -> tuple[str, str, str]:
    """Return what a row of a recipe's data is, and how the plan divides the samples."""
    parts = loaded.parts
    shares = ", ".join(f"{share:.0%} {name}" for name, share in parts.data.part_shares.items())
    count = "" if parts.data.samples_per_row == 1 else f"{parts.data.samples_per_row:g} of each; "
    return code(loaded.name), parts.data.row, f"{count}{shares}"


def _summary(loaded: LoadedRecipe) -> str:
    return next(iter((type(loaded.recipe).__doc__ or "").strip().splitlines()), "")


def _section(loaded: LoadedRecipe) -> str:
    own, fields = own_fields(loaded), option_fields(loaded)
    owners = (Common, FoldOption, AbsentData, Adaptation)
    shared = {name: field for owner in owners for name, field in config.fields(owner).items()}
    changed = {name: loaded.options[name] for name in fields if name not in own}
    changed = {name: value for name, value in changed.items() if value != shared[name].default}
    missing = [name for name in shared if name not in fields]
    by_size = {size: size_defaults(loaded, {"size": size}) for size in _sizes(own)}
    lines = [f"## {loaded.name}", escape(_summary(loaded)), "", _options(loaded, own.values())]
    if changed:
        others = f"Other defaults of [options of every recipe](#options-of-every-recipe): {_values(changed)}."
        lines += [paragraph(others), ""]
    for size, values in by_size.items():
        if values:
            when = f"With `size={size}`, and without `data`, `epochs`, `max_updates`, `subset`, `rows` and `lengths`"
            lines += [paragraph(f"{when}, these are the defaults: {_values(values)}."), ""]
    if missing:
        lines += [f"It has none of the options {', '.join(map(code, missing))}.", ""]
    return "\n".join(lines)


def _sizes(own: Mapping[str, config.Field]) -> tuple[Any, ...]:
    return own["size"].choices if "size" in own else ()


def _options(loaded: LoadedRecipe, fields: Iterable[config.Field]) -> str:
    rows = (
        (code(field.name), code(config.option_text(loaded.options[field.name])), value_text(field), escape(field.help))
        for field in fields
    )
    return table(("option", "default", "value", "meaning"), rows)


def _values(values: Mapping[str, Any]) -> str:
    return ", ".join(code(f"{name}={config.option_text(value)}") for name, value in values.items())
