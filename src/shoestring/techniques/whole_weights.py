"""Whole weights for code that uses those of a block without calling it, such as a generator of text."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import nn

_ATTRIBUTE = "_gather_all_weights"


def whole_weights(model: nn.Module) -> AbstractContextManager[Any]:
    """Return a context in which this process has all weights of the model, if they are divided among several.

    All processes enter it together. The context may be entered within itself.
    """
    gather: Callable[[], AbstractContextManager[Any]] = vars(model).get(_ATTRIBUTE, nullcontext)
    return gather()


def provide(model: nn.Module, gather: Callable[[], AbstractContextManager[Any]]) -> None:
    """Let `whole_weights(model)` be the context that `gather` returns."""
    vars(model)[_ATTRIBUTE] = gather
