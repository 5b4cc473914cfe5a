"""Calls of a module that another function handles.

The class of the module is replaced, as `fully_shard` does: some layers implement checkpointing in `__call__`, and hooks
would run inside of it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import nn


def redirect(module: nn.Module, call: Callable[[Callable[..., Any], Any, Any], Any]) -> None:
    """Have calls of the module run `call(original, args, kwargs)`, which may run `original(*args, **kwargs)`.

    Raises TypeError if the class of the module cannot be replaced.
    """
    kind = type(module)

    def redirected(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return call(functools.partial(kind.__call__, module), args, kwargs)

    attributes = {"__call__": redirected, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    module.__class__ = type(kind.__name__, (kind,), attributes)
