"""Recipes of installed packages: entry points of the group `shoestring.recipes`, which the built-in ones are as well.

    [project.entry-points."shoestring.recipes"]
    spiral = "spirals:Spiral"

A name is found in the metadata of the packages. None of them is imported before its recipe is used.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from shoestring.base.errors import UsageError
from shoestring.base.failures import recipe_errors

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "shoestring.recipes"
DATA_GROUP = "shoestring.recipes.data"
"""The recipes that train a model on data, by the prefix of the references that name the model alone."""

BUILT_IN = "built-in"
_DISTRIBUTION = "shoestring"
_NAME = re.compile(r"[A-Za-z0-9][\w-]*", re.ASCII)
"""Other names might be those of files or of models."""


@dataclass(frozen=True, kw_only=True)
class Package:
    """An installed distribution, whose recipe is the same as long as name and version are."""

    distribution: str
    version: str

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Package:
        return cls(distribution=str(values.get("distribution")), version=str(values.get("version")))

    @property
    def is_built_in(self) -> bool:
        """Whether it is Shoestring itself."""
        return self.distribution == _DISTRIBUTION

    @property
    def origin(self) -> str:
        """`built-in`, or the distribution and its version."""
        return BUILT_IN if self.is_built_in else str(self)

    @property
    def requirement(self) -> str:
        """What pip installs."""
        return f"{self.distribution}=={self.version}"

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}"


@dataclass(frozen=True, kw_only=True)
class InstalledRecipe:
    """A recipe's name, and the object of a package that it stands for."""

    name: str
    package: Package
    entry: EntryPoint

    def load(self) -> tuple[Any, ModuleType]:
        """Import the object, and return it with its module. Raises UsageError whatever the package's code raises."""
        with recipe_errors(f"the recipe {self.name} of {self.package.origin} cannot be loaded"):
            return self.entry.load(), sys.modules[self.entry.module]


def installed() -> Mapping[str, Sequence[InstalledRecipe]]:
    """Return the recipes of all installed packages by name, the built-in ones first; one is usable if it has no other
    of its name beside it."""
    return _installed(GROUP, _state_of_path())


def find(name: str) -> InstalledRecipe | None:
    """Return the installed recipe of this name; None if there is none.

    Raises UsageError, which names the packages, if several have one.
    """
    recipes = installed().get(name, ())
    if len(recipes) > 1:
        raise UsageError(
            ambiguity(recipes), hint=f"uninstall one of them: pip uninstall {recipes[-1].package.distribution}"
        )
    return recipes[0] if recipes else None


def ambiguity(recipes: Sequence[InstalledRecipe]) -> str:
    """Describe that several packages have a recipe of the same name."""
    names = " and ".join(str(recipe.package) for recipe in recipes)
    return f"several packages have a recipe named {recipes[0].name}: {names}"


def built_in_names() -> list[str]:
    """Return the names of the built-in recipes, in the order in which they are declared."""
    return [name for name, recipes in installed().items() if recipes[0].package.is_built_in]


def recipe_for_data(prefix: str) -> str:
    """Return the name of the recipe that trains on data what references with this prefix name.

    Raises UsageError if no installed package has one.
    """
    for of_data in _installed(DATA_GROUP, _state_of_path()).get(prefix, ()):
        for name, recipes in installed().items():
            if recipes[0].entry.value == of_data.entry.value:
                return name
    raise UsageError(f"no installed package has a recipe that trains {prefix} on data")


def _state_of_path() -> tuple[tuple[str, int], ...]:
    """Return what changes when a package is installed into, or removed from, the folders of `sys.path`."""
    state = []
    for folder in sys.path:
        try:
            state.append((folder, Path(folder or ".").stat().st_mtime_ns))
        except OSError:
            continue
    return tuple(state)


@lru_cache(maxsize=8)
def _installed(group: str, _: tuple[tuple[str, int], ...]) -> dict[str, list[InstalledRecipe]]:
    from importlib.metadata import entry_points

    recipes = [
        InstalledRecipe(
            name=entry.name, package=Package(distribution=entry.dist.name, version=entry.dist.version), entry=entry
        )
        for entry in entry_points(group=group)
        if entry.dist is not None and _NAME.fullmatch(entry.name)
    ]
    by_name: dict[str, list[InstalledRecipe]] = {}
    for recipe in sorted(recipes, key=lambda recipe: not recipe.package.is_built_in):
        by_name.setdefault(recipe.name, []).append(recipe)
    return by_name
