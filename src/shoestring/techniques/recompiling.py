"""For how many shapes torch compiles a function, and an end there instead of going on uncompiled.

The limits have public names (`torch.compiler.config`) in torch 2.13; before that `torch._dynamo.config` has the same
ones, from 2.6 on. The exception's name, `FailOnRecompileLimitHit`, stands in `torch.compile`'s documentation and where
it is imported from does not, so it is known by its name. Where torch has no such limits to set, what is compiled is
counted here, up to the eight that torch compiles by itself.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

from shoestring.techniques import trees

_PLACES = ("torch.compiler.config", "torch._dynamo.config")
_NAMES = ("recompile_limit", "accumulated_recompile_limit", "fail_on_recompile_limit_hit")
_ERROR = "FailOnRecompileLimitHit"
_TORCHS_OWN = 8


class Limit:
    """On the shapes of all functions that are compiled for one model."""

    def __init__(self, shapes: int, *, kinds: int = 1) -> None:
        """So many `shapes` of each of so many `kinds` of functions, where torch lets it be set."""
        config, count = _config(), shapes * kinds
        self._shapes = _TORCHS_OWN if config is None else shapes
        self._seen: set[Hashable] | None = set() if config is None else None
        if config is not None:
            config.recompile_limit = max(config.recompile_limit, count)
            config.accumulated_recompile_limit = max(config.accumulated_recompile_limit, count)
            config.fail_on_recompile_limit_hit = True

    def on(self, run: Callable[..., Any], kind: Hashable, exceeded: Callable[[int], Exception]) -> Callable[..., Any]:
        """`run`, a compiled function, that raises what `exceeded` makes of the limit for one shape too many.

        What then ran uncompiled would depend on the order in which shapes came. Functions of one `kind` share what is
        compiled.
        """

        @functools.wraps(run)
        def limited(*args: Any, **kwargs: Any) -> Any:
            if self._seen is not None:
                self._seen.add((kind, torch.is_grad_enabled(), *map(_described, trees.leaves((args, kwargs)))))
                if len(self._seen) > self._shapes:
                    raise exceeded(self._shapes)
            try:
                return run(*args, **kwargs)
            except Exception as error:
                if type(error).__name__ != _ERROR:
                    raise
                raise exceeded(self._shapes) from error

        return limited


def _config() -> Any:
    """Where torch has the limits; None where it has none by their names."""
    for place in _PLACES:
        try:
            config = importlib.import_module(place)
        except ImportError:
            continue
        if all(hasattr(config, name) for name in _NAMES):
            return config
    return None


def _described(leaf: Any) -> Any:
    return (leaf.shape, leaf.dtype, leaf.requires_grad) if isinstance(leaf, Tensor) else type(leaf)
