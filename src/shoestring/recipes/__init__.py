"""The import paths that recipes had before they were a package of their own: `shoestring.recipes.legal` and below.

A module is imported by its new path, with a DeprecationWarning, and is the same object under both.
"""

import importlib
import sys
import warnings
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_ADAPTERS = ("huggingface", "lightning")


class _OldPaths(MetaPathFinder, Loader):
    """Finds and loads the modules of this package, none of which has a file of its own."""

    def find_spec(self, fullname: str, *_: object) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname.startswith(f"{__name__}.") else None

    def create_module(self, spec: ModuleSpec) -> None:
        """Leave the module to the import system; `exec_module` replaces it."""

    def exec_module(self, module: ModuleType) -> None:
        old = module.__name__
        path = old.removeprefix(f"{__name__}.")
        package = "shoestring.integrations" if path.partition(".")[0] in _ADAPTERS else "shoestring_recipes"
        warnings.warn(f"{old} has moved: import {package}.{path}", DeprecationWarning, stacklevel=2)
        sys.modules[old] = importlib.import_module(f"{package}.{path}")


sys.meta_path.insert(0, _OldPaths())  # before the finder that would load the files a second time
