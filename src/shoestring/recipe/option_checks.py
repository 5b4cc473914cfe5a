"""Checks of a recipe's options: of the object that has them, and of their values."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from pathlib import Path
from types import NoneType
from typing import Any

from shoestring.base import config
from shoestring.base.errors import UsageError
from shoestring.base.json_values import NotJsonError, encode
from shoestring.recipe.absent_data import AbsentData
from shoestring.recipe.folds import Fold

_MOST_SAMPLES = 2**31 - 1
"""In one update: more than any dataset has."""


def require_dataclass(recipe: object) -> None:
    """Raise UsageError if the recipe has `options` that are not an instance of a dataclass, or does not take them."""
    options = getattr(recipe, "options", None)
    if options is None:
        return
    name, kind = type(recipe).__name__, type(options)
    if isinstance(options, type):
        raise UsageError(
            f"the options of {name} are the class {options.__name__}, not an instance of it",
            hint=f"write options = {options.__name__}()",
        )
    if not dataclasses.is_dataclass(options):
        raise UsageError(
            f"the options of {name} are of the type {kind.__module__}.{kind.__name__}, not an instance of a dataclass",
            hint="--set needs the names, types and defaults of a frozen dataclass: give those values that --set may "
            "change as its fields, and build the configuration from them in model() and data(). Or call the attribute "
            "otherwise, such as `config`: then the recipe has only the options that every recipe has",
        )
    try:
        inspect.signature(type(recipe)).bind(options)
    except TypeError as error:
        raise UsageError(
            f"{name}(options) is not possible: {error}",
            hint="let its __init__ take the options: def __init__(self, options=Options()): self.options = options",
        ) from error
    except ValueError:  # a class without a signature
        return


def plain(value: Any) -> Any:
    """Return a number of NumPy as one of Python."""
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", None) == 0 else value


def require_plain(recipe_name: str, values: Mapping[str, Any]) -> None:
    """Raise UsageError for values that the plan of a run cannot store, or would not read again as they are."""
    kinds = (NoneType, bool, int, float, str, Path)
    problems = []
    for name, value in values.items():
        try:
            is_same = isinstance(value, Path) or (isinstance(value, kinds) and encode(value) == value)
        except NotJsonError:
            is_same = False
        if not is_same:
            problems.append(f"{name} is {value!r:.100} of type {type(value).__name__}")
    if problems:
        raise UsageError(
            f"options of {recipe_name} cannot be used: the plan of a run could not store them",
            problems=problems,
            hint="an option is a text, a finite number, true or false, a path or None; make other values of it where "
            "they are needed, such as a date of a text",
        )


def find_problems(recipe: object, values: Mapping[str, Any], own: Mapping[str, config.Field]) -> list[str]:
    """Return the problems of the values of all options; `own` are the fields of the recipe's own ones."""
    problems = config.too_small(values, {"epochs": 1, "effective_batch": 1, "seed": 0})
    if "max_updates" not in own:
        problems += config.too_small(values, {"max_updates": 1})
    if "ema" not in own and values["ema"] is not None and not 0 < values["ema"] < 1:
        problems.append(f"ema={values['ema']}: must be more than 0 and less than 1, such as 0.999")
    problems += _absent_problems(values, own)
    if "fold" not in own:
        problems += _fold_problems(recipe, values.get("fold"))
    if values["effective_batch"] > _MOST_SAMPLES:
        problems.append(f"effective_batch={values['effective_batch']}: must be at most {_MOST_SAMPLES}")
    return problems


def _absent_problems(values: Mapping[str, Any], own: Mapping[str, config.Field]) -> list[str]:
    """Return the problems of the options of `AbsentData` that the recipe does not have itself."""
    absent = {name: values.get(name) for name in config.fields(AbsentData) if name not in own}
    names = [name for name, value in absent.items() if value is not None]
    problems = config.too_small({"rows": None, "row_tokens": None} | absent, {"rows": 2, "row_tokens": 1})
    if names and values.get("data") is not None:
        problems.append(f"{' and '.join(names)}: for data that are not here, but data={values['data']} is set as well")
    if {"row_tokens", "lengths"} <= set(names):
        problems.append("row_tokens and lengths are both the lengths of samples: set one of them")
    return problems


def _fold_problems(recipe: object, text: str | None) -> list[str]:
    """Return the problems of the option `fold` of a recipe without its own."""
    if text is None:
        return []
    own = getattr(recipe, "fold", None)
    if own is not None and not isinstance(own, str):
        return [
            f"fold={text}: the recipe has a `fold` of its own, {own!r:.60}, and would not get this text: make it a "
            "field of the recipe's options (of the type int, from 0, with the number of folds in the field folds)"
        ]
    try:
        Fold.parse(text)
    except ValueError as error:
        return [f"fold={text}: {error}"]
    return []
