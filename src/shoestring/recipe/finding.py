"""Finding and loading recipes by a name, a path or an object."""

from __future__ import annotations

import dataclasses
import importlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, TypeGuard

from shoestring.base import config
from shoestring.base.errors import ShoestringError, UsageError, nearest
from shoestring.base.failures import recipe_errors
from shoestring.base.reading import is_file, is_folder, real_path
from shoestring.base.settings import Settings
from shoestring.recipe import installed, lightning
from shoestring.recipe.absent_data import split_values
from shoestring.recipe.dataset_paths import DatasetPath, require_no_local_paths, split_dataset_paths
from shoestring.recipe.installed import InstalledRecipe, Package
from shoestring.recipe.near_misses import require_no_near_misses
from shoestring.recipe.options import BEFORE, LoadedRecipe, option_fields, own_fields, size_defaults, with_defaults
from shoestring.recipe.signatures import require_signatures
from shoestring.recipe.source import RecipeSource

HUGGING_FACE = "hf:"
"""The prefix of a recipe that is made from a Hugging Face configuration."""
_A_RECIPE_HAS = "a recipe has model(), batch(size) and loss(model, batch)"
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")

_HUGGING_FACE, _LIGHTNING = "shoestring.integrations.huggingface", "shoestring.integrations.lightning"
"""The modules that make recipes of configurations and of LightningModules; this layer is below theirs."""


class VerifiedReference(str):
    """A reference to a recipe's file of which only the verified `contents` are executed (`recipe.source`)."""

    contents: Mapping[str, bytes]

    def __new__(cls, reference: str, contents: Mapping[str, bytes]) -> VerifiedReference:
        verified = super().__new__(cls, reference)
        verified.contents = contents
        return verified


def find(reference: str | object, *, verified: Mapping[str, bytes] | None = None, is_new: bool = True) -> LoadedRecipe:
    """Return a recipe with its default options.

    `reference` is the name of an installed recipe, `hf:PATH_OR_NAME`, `path/to/file.py`, `path/to/file.py:Class`, an
    object of this process, for example of a class defined in a notebook, or what this function has returned.

    Loading a file executes its code: use only files that you would run with Python. With `verified`, only these
    contents of the file and of files beside it are executed (`recipe.source`).

    Raises UsageError for an unknown name, an unreadable file, a file with no recipe or several, and an object that is
    not a recipe; if it `is_new`, which a recipe that has trained a run is not, also for names of other frameworks
    and for functions with other parameters.
    """
    if isinstance(reference, LoadedRecipe):
        return reference
    if isinstance(reference, VerifiedReference):
        verified = reference.contents
    loaded = _find(reference, verified)
    if is_new:
        require_no_near_misses(type(loaded.recipe), loaded.name)
        require_signatures(loaded.parts)
    return loaded


def _find(reference: str | object, verified: Mapping[str, bytes] | None) -> LoadedRecipe:
    if not isinstance(reference, str):
        return _find_live(reference)
    if "\0" in reference:
        raise UsageError(f"there is no recipe {reference!r}", hint="a path has no NUL character")
    if recipe := installed.find(reference):
        return _load_installed(recipe)
    if reference.startswith(HUGGING_FACE):
        return _find_hugging_face(reference.removeprefix(HUGGING_FACE))
    path = file_of(reference)
    if path is None:
        raise UsageError(f"there is no recipe {reference!r}", hint=_suggest(reference))
    class_name = reference.partition(":")[2]
    kind, source = _load_recipe_class(path, class_name, verified)
    name = f"{path.name}:{class_name}" if class_name else path.name
    return with_defaults(kind, name, source=source)


def _suggest(reference: str) -> str:
    """Return what an unknown reference may have been meant for: the model of a configuration, or another recipe."""
    path = Path(reference).expanduser()
    is_model = is_file(path / "config.json")
    is_hub_name = _HUB_NAME.fullmatch(reference) and not (is_file(path) or is_folder(path))
    if is_model or path.suffix == ".json" or is_hub_name:
        return f"for a Hugging Face model use {HUGGING_FACE}{reference}"
    if is_file(file := Path(f"{path}.py")):
        return f"did you mean {file}?"
    if not (names := list(installed.installed())):
        return "this copy of Shoestring has no metadata, so nothing is found by its name: install it with pip"
    return (
        f"{nearest(reference, names)}; for your own recipe use path/to/file.py, "
        f"for a Hugging Face model {HUGGING_FACE}path/to/config.json"
    )


def file_of(reference: str) -> Path | None:
    """Return the file that loading a recipe by this reference executes; None for one of another kind.

    Raises UsageError if there is no such file.
    """
    file = reference.partition(":")[0]
    if reference.startswith(HUGGING_FACE) or not file.endswith(".py"):
        return None
    path = real_path(Path(file))
    if not is_file(path):
        raise UsageError(
            f"there is no file {path}", hint=f"the built-in recipes are {', '.join(installed.built_in_names())}"
        )
    return path


def load(reference: str | object, options: Mapping[str, object]) -> LoadedRecipe:
    """Return the recipe of a name, a path or an object with the given `options`.

    Raises UsageError that lists every unknown option and invalid value.
    """
    loaded = find(reference)
    values = config.read(options, option_fields(loaded), f"options of {loaded.name}")
    values = {**size_defaults(loaded, values), **values}
    with recipe_errors(f"{loaded.name} does not accept its options"):
        return loaded.replace(**values)


def choose(
    reference: str | object, values: Mapping[str, object], *, stored: bool = False
) -> tuple[LoadedRecipe, Settings]:
    """Return a recipe and settings with `values`, each of which is a recipe's option or a setting.

    In `stored` values an option that is missing did not exist when they were stored: it has the value of `BEFORE`, and
    the defaults of a size, which may be newer, do not apply to it.

    Raises UsageError that lists every unknown name and invalid value.
    """
    if is_hugging_face(reference) and values.get("data") is not None:
        reference, values = as_finetune(reference, values)
    loaded = find(reference)
    options, settings = option_fields(loaded), Settings.fields()
    chosen = config.read(values, {**options, **settings}, f"options or settings of {loaded.name}")
    earlier = {name: value for name, value in BEFORE.items() if name in options}
    chosen = {**(earlier if stored else size_defaults(loaded, chosen)), **chosen}
    with recipe_errors(f"{loaded.name} does not accept its options"):
        loaded = loaded.replace(**{name: value for name, value in chosen.items() if name in options})
    chosen_settings = Settings(**{name: value for name, value in chosen.items() if name in settings})
    if chosen_settings.packing == "yes" and loaded.parts.data.packed_batch is None:
        raise UsageError(
            f"packing=yes: {loaded.name} cannot pack several samples into a row, at least not with these options",
            hint="leave packing out; a recipe that packs has packed_batch(size) and capacity",
        )
    return loaded, chosen_settings


def choose_attached(
    reference: str | object,
    values: Mapping[str, object],
    in_datasets: Mapping[str, DatasetPath] = MappingProxyType({}),
    *,
    allow_local: bool = True,
) -> tuple[LoadedRecipe, Settings]:
    """Return a recipe and settings as `choose` does; options that are paths may be in datasets of Kaggle, in `values`
    or in `in_datasets`, of which those count that the recipe has.

    Raises UsageError as `choose` does; without `allow_local` also for paths of this machine.
    """
    if is_hugging_face(reference) and (values.get("data") is not None or "data" in in_datasets):
        reference, values = as_finetune(reference, values)
    loaded = find(reference)
    fields = option_fields(loaded)
    values, own = split_dataset_paths(values, fields)
    if not allow_local:
        require_no_local_paths(values, fields)
    loaded, settings = choose(loaded, values)
    usable = {name: path for name, path in in_datasets.items() if name in fields}
    return dataclasses.replace(loaded, in_datasets={**usable, **own}), settings


def choose_for_plan(reference: str | object, values: Mapping[str, object]) -> tuple[LoadedRecipe, Settings]:
    """Return a recipe and settings as `choose_attached` does, for a plan.

    Raises UsageError as `choose` does, and for training data in a dataset without an option that stands for them.
    """
    loaded, settings = choose_attached(reference, values)
    if "data" in loaded.in_datasets and loaded.absent_data is None:
        raise UsageError(
            f"data={loaded.in_datasets['data']}: there is no such path here, and of a dataset on Kaggle the number of "
            "rows is unknown",
            problems=[f"a row is {loaded.parts.data.row}"],
            hint="for a dataset, add --set rows=N, or --set lengths=FILE of shoestring check RECIPE --lengths FILE",
        )
    return loaded, settings


def choose_for_run(
    reference: str | object, values: Mapping[str, object], *, allow_local: bool = True
) -> tuple[LoadedRecipe, dict[str, object]]:
    """Return a recipe with the `values` of a run, which may be paths in datasets of Kaggle, and `values` without these
    and without the options of plans for absent data.

    Raises UsageError as `choose_attached` does, also for those options, and if the file of lengths cannot be used.
    """
    of_run, absent = split_values(values, own_fields(find(reference)))
    loaded, _ = choose_attached(reference, of_run, allow_local=allow_local)
    if absent:
        of_plan = {name: value for name, value in of_run.items() if name != "data"} | absent
        _ = choose_attached(reference, of_plan)[0].lengths
    return loaded, {name: value for name, value in of_run.items() if name not in loaded.in_datasets}


def is_hugging_face(reference: object) -> TypeGuard[str]:
    """Return whether this is the reference `hf:...`."""
    return isinstance(reference, str) and reference.startswith(HUGGING_FACE)


def as_finetune(reference: str, values: Mapping[str, object]) -> tuple[str, dict[str, object]]:
    """Return the recipe that trains the model `hf:...` on data, and `values` with the model.

    Raises UsageError if there is no such model.
    """
    source = _find_hugging_face(reference.removeprefix(HUGGING_FACE)).name.removeprefix(HUGGING_FACE)
    path = Path(source)
    model = str(path.parent) if path.suffix == ".json" and path.is_file() else source
    return recipe_for_data(), {"model": model, **values}


def recipe_for_data() -> str:
    """Return the name of the recipe that trains a model `hf:...` on data."""
    return installed.recipe_for_data(HUGGING_FACE.removesuffix(":"))


def package_of(reference: str) -> Package | None:
    """Return the package of the installed recipe of this name; None if there is none. It is not imported.

    Raises UsageError if several packages have one.
    """
    recipe = installed.find(reference)
    return recipe.package if recipe else None


def describe_installed() -> list[dict[str, Any]]:
    """Return the recipes of installed packages, the built-in ones first, as `describe` does."""
    return [_describe_installed(recipe, recipes) for recipes in installed.installed().values() for recipe in recipes]


def _describe_installed(recipe: InstalledRecipe, of_this_name: Sequence[InstalledRecipe]) -> dict[str, Any]:
    try:
        if len(of_this_name) > 1:
            raise UsageError(installed.ambiguity(of_this_name))
        return describe(_load_installed(recipe))
    except ShoestringError as error:
        problem = error.message
    return {"name": recipe.name, "summary": "", "origin": recipe.package.origin, "problem": problem, "options": []}


def describe(loaded: LoadedRecipe) -> dict[str, Any]:
    """Return a recipe's name, summary, and options with defaults, choices and help, as JSON.

    Keys:
        name (text): the name of the recipe, or of its file
        summary (text): the first line of the recipe's docstring
        origin (text): `built-in`, the distribution and version of the package, or the file of the recipe
        problem (text or null): why the recipe cannot be used; null if it can
        options (list of objects): the recipe's options, its own first
        options.name (text): the key of `--set`
        options.default (JSON): the value without `--set`; null for none
        options.expected (text): what the option accepts
        options.help (text): the meaning of the option
        options.own (true or false): whether it is the recipe's own option, or one that every recipe has
    """
    defaults = config.as_json(loaded.options)
    return {
        "name": loaded.name,
        "summary": next(iter((type(loaded.recipe).__doc__ or "").strip().splitlines()), ""),
        "origin": loaded.package.origin if loaded.package else str(loaded.path or loaded.name),
        "problem": None,
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


def _load_installed(recipe: InstalledRecipe) -> LoadedRecipe:
    subject = f"the recipe {recipe.name} of {recipe.package}"
    kind, module = recipe.load()
    if lightning.is_trainable(kind):
        kind = _lightning_recipe(kind, module, subject)
    elif missing := _missing_methods(kind):
        raise UsageError(
            f"{subject} is not a recipe: {recipe.entry.value} lacks {', '.join(missing)}", hint=_A_RECIPE_HAS
        )
    return with_defaults(kind, recipe.name, package=recipe.package)


def _find_live(recipe: object) -> LoadedRecipe:
    if lightning.is_trainable(recipe):
        adapter: Any = importlib.import_module(_LIGHTNING).recipe_class(recipe)
        return with_defaults(adapter, adapter.__name__, is_live=True)
    if lightning.is_trainable(type(recipe)):
        adapter = importlib.import_module(_LIGHTNING).recipe(recipe)
        return with_defaults(adapter, type(recipe).__name__, is_live=True)
    missing = _missing_methods(recipe)
    if missing:
        raise UsageError(
            f"{type(recipe).__name__} is not a recipe: it lacks {', '.join(missing)}",
            hint=_A_RECIPE_HAS,
        )
    return with_defaults(recipe, type(recipe).__name__, is_live=True)


def _find_hugging_face(source: str) -> LoadedRecipe:
    """Return the recipe of a configuration's file or folder, whose path is made absolute, or of a name on the hub."""
    if not source:
        raise UsageError("hf: names no model", hint="use hf:path/to/config.json, or hf:owner/name on the hub")
    path = Path(source).expanduser()
    is_local = path.exists() or path.suffix == ".json"
    if is_local and not path.exists():
        raise UsageError(
            f"there is no file {real_path(path)}", hint="use hf: with a config.json, its folder, or a name on the hub"
        )
    source = str(real_path(path)) if is_local else source
    kind = importlib.import_module(_HUGGING_FACE).recipe_class(source)
    return with_defaults(kind, HUGGING_FACE + source)


def _load_recipe_class(path: Path, class_name: str, verified: Mapping[str, bytes] | None) -> tuple[type, RecipeSource]:
    try:
        source = RecipeSource(path, verified)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read as a recipe: {error}") from error
    with recipe_errors(f"{path} could not be run"):
        module = source.execute()
    classes: dict[str, type] = {
        key: value
        for key, value in vars(module).items()
        if isinstance(value, type) and value.__module__ == module.__name__
    }
    plain = {key: value for key, value in classes.items() if not _missing_methods(value)}
    modules = {key: value for key, value in classes.items() if lightning.is_trainable(value)}
    recipes = {**plain, **modules} if class_name else plain or modules
    if class_name:
        if class_name not in recipes:
            raise UsageError(f"{path} has no recipe {class_name!r}", hint=nearest(class_name, recipes))
        recipes = {class_name: recipes[class_name]}
    if not recipes:
        raise UsageError(
            f"{path} has no recipe",
            hint="write a class with model(), batch(size) and loss(model, batch), or a LightningModule",
        )
    if len(recipes) > 1:
        raise UsageError(
            f"{path} has {len(recipes)} recipes: {', '.join(recipes)}",
            hint=f"select one, for example {path}:{next(iter(recipes))}",
        )
    (kind,) = recipes.values()
    return _lightning_recipe(kind, module, str(path)) if lightning.is_trainable(kind) else kind, source


def _lightning_recipe(kind: type, module: ModuleType, subject: str) -> type:
    """Return the class of the recipe that trains a LightningModule, with the data of its module."""
    with recipe_errors(f"{subject} could not be run"):
        adapter: type = importlib.import_module(_LIGHTNING).recipe_class(kind, vars(module).values())
    return adapter


def _missing_methods(recipe: object) -> list[str]:
    return [name for name in ("model", "batch", "loss") if not callable(getattr(recipe, name, None))]
