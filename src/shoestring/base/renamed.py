"""Names of version 0.1.0 that have changed since. Code that uses the old ones works as before.

A module with a renamed attribute defines `__getattr__` by `attributes_of`, a class by `instance_attributes_of`; a
function with renamed arguments has the decorator `accepts_old_arguments`. The tables below are complete.
"""

import functools
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

ATTRIBUTES = {
    "shoestring.base.errors": {"QuestionError": "UsageError"},
    "shoestring.pieces": {"arithmetic": "mixed_precision"},
}
"""By module: the old name and the new."""

INSTANCE_ATTRIBUTES = {
    "Finding": {"said": "message"},
    "OutOfMemory": {"done": "action"},
    "Plan": {"ladder": "fallbacks"},
}
"""By class: the old name and the new. The keys of its JSON have not changed."""

ARGUMENTS = {
    "update": {"arithmetic": "mixed_precision"},
    "Recovering.__init__": {
        "arithmetic": "mixed_precision",
        "told": "on_out_of_memory",
        "otherwise": "fallback",
    },
}
"""By function of `shoestring.pieces`: the old keyword and the new."""


def attributes_of(module: str) -> Callable[[str], object]:
    """The `__getattr__` of `module`, for its old names."""

    def attribute(name: str) -> object:
        if name not in ATTRIBUTES[module]:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return getattr(sys.modules[module], ATTRIBUTES[module][name])

    return attribute


def instance_attributes_of(class_name: str) -> Callable[[object, str], object]:
    """The `__getattr__` of the class `class_name`, for its old names."""

    def attribute(instance: object, name: str) -> object:
        if name not in INSTANCE_ATTRIBUTES[class_name]:
            raise AttributeError(f"{class_name!r} object has no attribute {name!r}")
        return getattr(instance, INSTANCE_ATTRIBUTES[class_name][name])

    return attribute


def accepts_old_arguments(function: Callable[P, T]) -> Callable[P, T]:
    """`function`, called by the old keywords as well. Raises TypeError if a call has both names of one argument."""
    renamed = ARGUMENTS[function.__qualname__]

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        for old in renamed.keys() & kwargs.keys():
            if renamed[old] in kwargs:
                raise TypeError(f"{function.__qualname__}() got both {old!r} and its new name {renamed[old]!r}")
            kwargs[renamed[old]] = kwargs.pop(old)
        return function(*args, **kwargs)

    return call
