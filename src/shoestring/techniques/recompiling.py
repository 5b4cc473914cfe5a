"""A limit on the number of shapes that torch compiles a function for, which raises instead of continuing uncompiled.

The limits have public names (`torch.compiler.config`) in torch 2.13; `torch._dynamo.config` has the same ones since
2.10. `torch.compile`'s documentation names the exception, `FailOnRecompileLimitHit`, but not the module to import it
from, so it is recognized by its name. If torch has no such limits, compilations are counted here, up to torch's default
of eight.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

from shoestring.techniques import trees

_MODULES = ("torch.compiler.config", "torch._dynamo.config")
_NAMES = ("recompile_limit", "accumulated_recompile_limit", "fail_on_recompile_limit_hit")
_ERROR = "FailOnRecompileLimitHit"
_DEFAULT_LIMIT = 8


class Limit:
    """A limit on the shapes of all functions that are compiled for one model."""

    def __init__(self, shapes: int, *, kinds: int = 1) -> None:
        """Allow this many `shapes` for each of this many `kinds` of functions, if torch has such a limit."""
        config, count = _find_config(), shapes * kinds
        self._shapes = _DEFAULT_LIMIT if config is None else shapes
        self._compiled: set[Hashable] | None = set() if config is None else None
        if config is not None:
            config.recompile_limit = max(config.recompile_limit, count)
            config.accumulated_recompile_limit = max(config.accumulated_recompile_limit, count)
            config.fail_on_recompile_limit_hit = True

    def guard(
        self, run: Callable[..., Any], kind: Hashable, make_error: Callable[[int], Exception]
    ) -> Callable[..., Any]:
        """Return the compiled function `run` with a check that raises `make_error(limit)` when the limit is exceeded.

        Without the check, the shapes that run uncompiled would depend on the order of the shapes. Functions of one
        `kind` share their compiled code.
        """

        @functools.wraps(run)
        def limited(*args: Any, **kwargs: Any) -> Any:
            if self._compiled is not None:
                self._compiled.add((kind, torch.is_grad_enabled(), *map(_signature, trees.leaves((args, kwargs)))))
                if len(self._compiled) > self._shapes:
                    raise make_error(self._shapes)
            try:
                return run(*args, **kwargs)
            except Exception as error:
                if type(error).__name__ != _ERROR:
                    raise
                raise make_error(self._shapes) from error

        return limited


def _find_config() -> Any:
    """Return torch's module that has the limits, or None."""
    for module in _MODULES:
        try:
            config = importlib.import_module(module)
        except ImportError:
            continue
        if all(hasattr(config, name) for name in _NAMES):
            return config
    return None


def _signature(leaf: Any) -> Any:
    return (leaf.shape, leaf.dtype, leaf.requires_grad) if isinstance(leaf, Tensor) else type(leaf)
