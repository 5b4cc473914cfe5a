"""Values of any kind as JSON, so that two sessions can compare them: arguments, configurations, functions."""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import math
import re
import types
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

import torch

_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")
_MOST_TENSOR_VALUES = 4096
_DEPTH = 6


def plain(value: Any, depth: int = _DEPTH) -> Any:
    """Return `value` as JSON that is equal in another process if the value is. Objects count by their attributes."""
    if isinstance(value, enum.Enum):
        return plain(value.value, depth)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if depth <= 0:
        return type_name(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item, depth - 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, depth - 1) for item in value]
    if isinstance(value, Set):
        return sorted((plain(item, depth - 1) for item in value), key=repr)
    if isinstance(value, torch.Tensor):
        return _plain_tensor(value)
    if isinstance(value, Path | torch.dtype | torch.device):
        return str(value)
    if callable(value):
        return plain_callable(value, depth - 1)
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name), depth - 1) for field in dataclasses.fields(value)}
    return type_name(value)


def plain_callable(value: Any, depth: int = _DEPTH) -> Any:
    """Return the name of a function or class as JSON, with what a call of it would use: its code and its arguments."""
    if isinstance(value, functools.partial):
        return {
            "function": plain_callable(value.func, depth),
            "arguments": plain([value.args, value.keywords], depth),
        }
    if isinstance(value, types.MethodType):
        return {"method": value.__func__.__qualname__, "of": plain_callable(value.__self__, depth)}
    if isinstance(value, types.FunctionType):
        return f"{value.__module__}.{value.__qualname__} (code {code_digest(value.__code__, value.__doc__)})"
    if isinstance(value, type) or not hasattr(value, "__dict__"):
        return getattr(value, "__qualname__", None) or type_name(value)
    if isinstance(value, torch.nn.Module):
        return type_name(value)
    return {"type": type_name(value), **{name: plain(item, depth - 1) for name, item in sorted(vars(value).items())}}


def code_digest(code: types.CodeType, documentation: str | None = None) -> str:
    """Return a digest of a function's instructions, names and constants, which comments and its position do not
    change.
    """
    constants = [
        code_digest(constant) if isinstance(constant, types.CodeType) else repr(constant)
        for constant in code.co_consts
        if constant != documentation
    ]
    content = repr((code.co_code, code.co_names, code.co_varnames, constants))
    return hashlib.sha256(_ADDRESS.sub("", content).encode()).hexdigest()[:12]


def text_digest(text: str) -> str:
    """Return a digest of a text, without the addresses of objects in it."""
    return hashlib.sha256(_ADDRESS.sub("", text).encode()).hexdigest()[:12]


def type_name(value: Any) -> str:
    """Return the name of the type of `value`, with its module."""
    return f"{type(value).__module__}.{type(value).__qualname__}"


def flat(name: str, value: Any) -> dict[str, Any]:
    """Return the values of nested mappings by their dotted names, which begin with `name`."""
    if not isinstance(value, dict) or not value:
        return {name: value}
    return {key: item for part, inner in value.items() for key, item in flat(f"{name}.{part}", inner).items()}


def _plain_tensor(value: torch.Tensor) -> Any:
    if value.numel() > _MOST_TENSOR_VALUES:
        return f"tensor {tuple(value.shape)} of {value.dtype}"
    return plain(value.detach().cpu().tolist())
