"""From a name, a path or an object to a recipe with the options it has."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoestring import config
from shoestring.errors import UsageError, nearest
from shoestring.recipe.options import LoadedRecipe, option_fields, own_fields, with_defaults
from shoestring.settings import Settings

BUILT_IN = {
    "vqa": "shoestring.recipes.vqa:VQA",
    "legal": "shoestring.recipes.legal:Legal",
    "temporal": "shoestring.recipes.temporal:Temporal",
    "chart": "shoestring.recipes.chart:Chart",
    "cloud": "shoestring.recipes.cloud:Cloud",
}

HUGGING_FACE = "hf:"
"""What begins the name of a recipe that a Hugging Face configuration makes."""


def find(reference: str | object) -> LoadedRecipe:
    """The recipe a built-in name, `hf:PATH_OR_NAME`, `path/to/file.py` or `path/to/file.py:Class` stands for, or an
    object of this process (of a notebook's class, say), with the options it has by default.

    Running a file runs its code: give only files you would run with Python.

    Raises UsageError for an unknown name, an unreadable file, a file with no recipe or several, and an object that
    is none.
    """
    if not isinstance(reference, str):
        return _live(reference)
    if reference in BUILT_IN:
        module, _, cls = BUILT_IN[reference].partition(":")
        kind = getattr(importlib.import_module(module), cls)
        return with_defaults(kind, reference)
    if reference.startswith(HUGGING_FACE):
        return _hugging_face(reference.removeprefix(HUGGING_FACE))
    where, _, wanted = reference.partition(":")
    if not where.endswith(".py"):
        raise UsageError(
            f"there is no recipe {reference!r}",
            hint=f"{nearest(reference, BUILT_IN)}; a recipe of your own is path/to/file.py, "
            f"a Hugging Face model {HUGGING_FACE}path/to/config.json",
        )
    path = Path(where).resolve()
    kind = _recipe_class(path, wanted)
    name = f"{path.name}:{wanted}" if wanted else path.name
    return with_defaults(kind, name, path=path, digest=hashlib.sha256(path.read_bytes()).hexdigest())


def load(reference: str | object, options: Mapping[str, object]) -> LoadedRecipe:
    """The recipe behind a name, a path or an object, with `options` chosen.

    Raises UsageError, naming every unknown or unreadable option at once.
    """
    found = find(reference)
    return found.replace(**config.read(options, option_fields(found), f"options of {found.name}"))


def choose(reference: str | object, values: Mapping[str, object]) -> tuple[LoadedRecipe, Settings]:
    """A recipe and settings with `values` set, each in the one of the two that has its name.

    Raises UsageError naming every unknown name and wrong value at once.
    """
    found = find(reference)
    options, settings = option_fields(found), config.fields(Settings)
    chosen = config.read(values, {**options, **settings}, f"options of {found.name} and settings")
    loaded = found.replace(**{name: value for name, value in chosen.items() if name in options})
    return loaded, Settings(**{name: value for name, value in chosen.items() if name in settings})


def built_in() -> list[dict[str, Any]]:
    """The built-in recipes: name, what it is, and its options with defaults, choices and help.

    An option is its `own`, or one that any recipe has.
    """
    return [describe(find(name)) for name in BUILT_IN]


def describe(loaded: LoadedRecipe) -> dict[str, Any]:
    """Return a recipe's name, summary, and options with defaults, choices and help, as JSON."""
    defaults = config.as_json(loaded.options)
    return {
        "name": loaded.name,
        "summary": next(iter((type(loaded.recipe).__doc__ or "").strip().splitlines()), ""),
        "options": [
            {
                "name": field.name,
                "default": defaults[field.name],
                "expected": field.expected(),
                "help": field.help,
                "own": field.name in own_fields(loaded),
            }
            for field in option_fields(loaded).values()
        ],
    }


def _live(recipe: object) -> LoadedRecipe:
    missing = _missing(recipe)
    if missing:
        raise UsageError(
            f"{type(recipe).__name__} is no recipe: it lacks {', '.join(missing)}",
            hint="a recipe has model(), batch(size) and loss(model, batch)",
        )
    return with_defaults(recipe, type(recipe).__name__, is_live=True)


def _hugging_face(source: str) -> LoadedRecipe:
    """The recipe of a configuration's file or folder, whose path is made absolute, or of a name on the hub."""
    if not source:
        raise UsageError("hf: names no model", hint="hf:path/to/config.json, or hf:owner/name on the hub")
    path = Path(source).expanduser()
    here = path.exists() or path.suffix == ".json"
    if here and not path.exists():
        raise UsageError(f"there is no file {path.resolve()}", hint="hf: takes a config.json, its folder or a name")
    source = str(path.resolve()) if here else source
    kind = importlib.import_module("shoestring.recipes.huggingface").of(source)
    return with_defaults(kind, HUGGING_FACE + source)


def _recipe_class(path: Path, wanted: str) -> type:
    if not path.is_file():
        raise UsageError(f"there is no file {path}", hint=f"built-in recipes: {', '.join(BUILT_IN)}")
    name = f"shoestring_recipe_{hashlib.sha256(str(path).encode()).hexdigest()[:16]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UsageError(f"{path} could not be run: {type(error).__name__}: {error}") from error
    found: dict[str, type] = {
        key: value
        for key, value in vars(module).items()
        if isinstance(value, type) and value.__module__ == name and not _missing(value)
    }
    if wanted:
        if wanted not in found:
            raise UsageError(f"{path} has no recipe {wanted!r}", hint=nearest(wanted, found))
        return found[wanted]
    if not found:
        raise UsageError(f"{path} has no recipe", hint="write a class with model(), batch(size) and loss(model, batch)")
    if len(found) > 1:
        raise UsageError(
            f"{path} has {len(found)} recipes: {', '.join(found)}", hint=f"say which: {path}:{next(iter(found))}"
        )
    return next(iter(found.values()))


def _missing(recipe: object) -> list[str]:
    return [name for name in ("model", "batch", "loss") if not callable(getattr(recipe, name, None))]
