"""The objects that a recipe's data set, collate function or loss can use: those that they hold, directly or not.

Held are the attributes of objects, the elements of containers, and what functions refer to: their closures, and the
global variables that the code of their module names. Only the code of the recipe's author is read for such names, not
that of installed libraries. No attribute is computed for this: properties are not called.
"""

import functools
import sys
import sysconfig
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from types import BuiltinMethodType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

_PLAIN = (str, bytes, bytearray, int, float, complex, type(None), np.generic, range, slice, torch.dtype, torch.device)
_LEAVES = (torch.Tensor, np.ndarray, ModuleType, CodeType)
_MOST_OBJECTS = 20_000
_MOST_ELEMENTS = 64
"""Of a container: augmentations are lists of a few, and the samples of a data set may be a list of millions."""
_DEPTH = 16
_LIBRARIES = tuple(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib"))


def walk(roots: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield pairs of (path, object) for the roots and what they hold, the nearest first and each object once.

    The paths and their order are the same in each process.
    """
    queue = deque((name, value, 0) for name, value in roots.items())
    visited: dict[int, Any] = {}  # the objects too, because the number of one that is gone is used again
    while queue and len(visited) < _MOST_OBJECTS:
        path, value, depth = queue.popleft()
        if isinstance(value, _PLAIN) or id(value) in visited:
            continue
        visited[id(value)] = value
        yield path, value
        if depth < _DEPTH and not isinstance(value, _LEAVES):
            queue.extend((path + suffix, child, depth + 1) for suffix, child in _children(value))


def _children(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, MethodType | BuiltinMethodType):
        yield "", value.__self__
        yield f".{value.__name__}", getattr(value, "__func__", None)
    elif isinstance(value, FunctionType):
        yield from _used_by(value)
    elif isinstance(value, type):
        if _is_own_code(value.__module__):
            yield from ((f".{name}", item) for name, item in list(vars(value).items()))
    elif isinstance(value, staticmethod | classmethod):
        yield "", value.__func__
    elif isinstance(value, property):
        yield "", value.fget
    else:
        yield from _held_by(value)


def _held_by(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, functools.partial):
        yield from ((f".{name}", getattr(value, name)) for name in ("func", "args", "keywords"))
    if isinstance(value, list | tuple | deque):
        yield from ((f"[{index}]", item) for index, item in enumerate(islice(value, _MOST_ELEMENTS)))
    elif isinstance(value, dict):
        yield from ((f"[{key!r}]", item) for key, item in list(islice(value.items(), _MOST_ELEMENTS)))
    attributes = getattr(value, "__dict__", None)
    if isinstance(attributes, dict):
        yield from ((f".{name}", item) for name, item in list(attributes.items()))
    for kind in type(value).__mro__:
        names = vars(kind).get("__slots__", ())
        for name in (names,) if isinstance(names, str) else tuple(names):
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                yield f".{name}", getattr(value, name)
        if kind is not object and _is_own_code(kind.__module__):
            yield "", kind


def _used_by(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the defaults of a function, the variables around it, and the global variables that it names."""
    yield "", function.__defaults__
    yield "", function.__kwdefaults__
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f".{name}", cell.cell_contents
        except ValueError:  # not set yet
            continue
    yield "", getattr(function, "__wrapped__", None)
    if _is_own_code(function.__module__):
        yield from _named(frozenset(_names(function.__code__)), function.__globals__, "")


def _named(names: frozenset[str], variables: Mapping[str, Any], module: str) -> Iterator[tuple[str, Any]]:
    for name in sorted(names & variables.keys()):
        value = variables[name]
        if isinstance(value, ModuleType):
            if not module.startswith(f" {value.__name__}.") and _is_own_code(value.__name__):
                yield from _named(names, vars(value), f" {value.__name__}.")
        else:
            yield f"{module or ' '}{name}", value


def _names(code: CodeType) -> Iterator[str]:
    """Yield the names in the code of a function, and of functions inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


@functools.lru_cache(maxsize=4096)
def _is_own_code(module: str | None) -> bool:
    """Return whether a module is code of the recipe's author, and not a library's."""
    top = (module or "").partition(".")[0]
    if top in sys.stdlib_module_names or top == "shoestring":
        return top == "__main__"
    file = getattr(sys.modules.get(top), "__file__", None)
    return file is None or not _is_library(Path(file).resolve())


def _is_library(file: Path) -> bool:
    folder = file.parent.parent if file.stem == "__init__" else file.parent
    return any(file.is_relative_to(path) for path in _LIBRARIES) or any(folder.glob("*.dist-info"))
