"""State that a script's own code changes while it trains, and that no checkpoint contains.

The library saves the state of a callback that is an `ExportableState`, and nothing of reward functions, losses and
collators. A resumed run begins again with their first values, so those that change are named to the user.
"""

from __future__ import annotations

import functools
import types
from collections import deque
from collections.abc import Iterator, Mapping, Set
from typing import Any

import torch

from shoestring.integrations.plain_values import plain, text_digest, type_name

_LIBRARIES = ("accelerate", "datasets", "peft", "shoestring", "torch", "transformers", "trl")
"""Packages whose own objects are not looked at: what they change is saved, or is no part of learning."""
_MOST_ITEMS = 256
"""The items up to which a container is compared by its content; a larger one is compared by its length."""


class UnsavedState:
    """The values that a trainer's callbacks and functions had at the start of a session."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._first = self._values()
        self._reported: set[str] = set()

    def changes(self) -> list[str]:
        """Return the values that have changed since the start, each of them once."""
        after = self._values()
        changed = {
            name: f"{name} ({self._first[name][1]}, now {text})"
            for name, (value, text) in after.items()
            if name in self._first and self._first[name][0] != value and name not in self._reported
        }
        self._reported |= changed.keys()
        return list(changed.values())

    def _values(self) -> dict[str, tuple[Any, str]]:
        return {
            f"{name} of {owner}": compared
            for owner, value in _owners(self._trainer)
            for name, item in _attributes(value)
            if (compared := _compared(item)) is not None
        }


def _owners(trainer: Any) -> Iterator[tuple[str, Any]]:
    for callback in trainer.callback_handler.callbacks:
        yield f"the callback {type(callback).__name__}", callback
    rewards = getattr(trainer, "reward_funcs", None)
    for reward in rewards if isinstance(rewards, list | tuple) else ():
        yield f"the reward function {getattr(reward, '__name__', type(reward).__name__)}", reward
    for name in ("data_collator", "compute_loss_func"):
        if (value := getattr(trainer, name, None)) is not None:
            yield name, value


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the variables that a call of `value` may change: of its object and class, or those that a function uses."""
    if isinstance(value, functools.partial):
        yield from _attributes(value.func)
        yield from value.keywords.items()
    elif isinstance(value, types.MethodType):
        yield from _attributes(value.__self__)
    elif isinstance(value, types.FunctionType):
        if not _is_of_library(value.__module__):
            yield from _variables(value)
    elif isinstance(value, torch.nn.Module) or not hasattr(value, "__dict__") or _is_of_library(type_name(value)):
        return
    else:
        saved = _saved_attributes(value)
        named = {**vars(type(value)), **vars(value)}
        yield from ((name, item) for name, item in named.items() if not name.startswith("__") and name not in saved)


def _variables(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the variables of a function that outlive a call."""
    code = function.__code__
    yield from vars(function).items()
    yield from ((name, function.__globals__[name]) for name in code.co_names if name in function.__globals__)
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        if cell != types.CellType():  # an empty one has no content yet
            yield name, cell.cell_contents
    first_default = code.co_argcount - len(function.__defaults__ or ())
    yield from zip(code.co_varnames[first_default:], function.__defaults__ or (), strict=False)
    yield from (function.__kwdefaults__ or {}).items()


def _saved_attributes(value: Any) -> Set[str]:
    """Return the names of the attributes that a callback saves itself."""
    from transformers.trainer_callback import ExportableState

    return value.state().get("attributes", {}).keys() if isinstance(value, ExportableState) else frozenset()


def _compared(value: Any) -> tuple[Any, str] | None:
    """Return a value to compare and its text; None for an object that cannot be compared cheaply."""
    if value is None or isinstance(value, bool | int | float | str):
        text = repr(value)
        return value, text if len(text) <= 40 else f"{text[:37]}..."
    if isinstance(value, list | tuple | deque | Set | Mapping):
        length = f"{len(value)} items"
        return (text_digest(repr(plain(_as_plain(value)))) if len(value) <= _MOST_ITEMS else length), length
    return None


def _as_plain(value: Any) -> Any:
    return list(value) if isinstance(value, deque) else value


def _is_of_library(module: str | None) -> bool:
    return (module or "").partition(".")[0] in _LIBRARIES
