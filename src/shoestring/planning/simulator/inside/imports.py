"""Functions of libraries that are replaced as soon as the library is imported."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from .quiet import quiet


class Finder:
    """The first of the finders of modules: it finds none itself, and adds a call after the import of some of them."""

    def __init__(self, callbacks: dict[str, Callable[[ModuleType], None]]) -> None:
        self._waiting = callbacks

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The specification that the other finders find for a module that is waited for, else None."""
        if name not in self._waiting:
            return None
        callback = self._waiting.pop(name)
        for finder in list(sys.meta_path):
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                quiet(_call_after)(spec, callback)
                return spec
        return None


def _call_after(spec: ModuleSpec, callback: Callable[[ModuleType], None]) -> None:
    loader: Any = spec.loader
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        execute(module)
        quiet(callback)(module)

    loader.exec_module = exec_module  # each module has a loader of its own


def when_imported(callbacks: dict[str, Callable[[ModuleType], None]]) -> None:
    """Call each function with its module: now, if that is imported, else when it will be."""
    later = {}
    for name, callback in callbacks.items():
        module = sys.modules.get(name)
        if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
            quiet(callback)(module)
        else:
            later[name] = callback
    if later:
        sys.meta_path.insert(0, Finder(later))
