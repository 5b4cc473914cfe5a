"""Observing whether a recipe's `model()` requests pretrained weights."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

from torch import nn

T = TypeVar("T")

_METHODS = {"from_pretrained": "cls", "load_state_dict": "self"}
"""Methods that load weights if they are those of a module, with the name of their first argument."""
_FUNCTIONS = {"load": "torch.serialization", "load_file": "safetensors.torch", "load_model": "safetensors.torch"}
"""Functions that load weights, with their modules."""


def observe_loading(build: Callable[[], T]) -> tuple[T, bool]:
    """Return what `build` returns, and whether it has called a function that loads weights.

    All calls of Python functions are observed, because such a function may be imported at any time and under any name.
    """
    previous, is_loading = sys.getprofile(), False

    def observe(frame: FrameType, event: str, _: Any) -> None:
        nonlocal is_loading
        if event == "call" and _loads_weights(frame):
            is_loading = True
            sys.setprofile(previous)

    sys.setprofile(observe)
    try:
        return build(), is_loading
    finally:
        sys.setprofile(previous)


def _loads_weights(frame: FrameType) -> bool:
    name = frame.f_code.co_name
    if name in _FUNCTIONS:
        return bool(frame.f_globals.get("__name__") == _FUNCTIONS[name])
    if name not in _METHODS:
        return False
    owner = frame.f_locals.get(_METHODS[name])
    return isinstance(owner, nn.Module) or (isinstance(owner, type) and issubclass(owner, nn.Module))
