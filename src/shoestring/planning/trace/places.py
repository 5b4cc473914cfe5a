"""The recipe's own code: which files are not it, and the Python code that calls an operator."""

from __future__ import annotations

import contextlib
from pathlib import Path

import torch

_PACKAGE = Path(__file__).parents[2]
_OWN = tuple(f"{_PACKAGE / folder}/" for folder in ("planning/trace", "recipe"))
_TORCH = str(Path(torch.__file__).parent)

_PYTHON_SYNTAX = {
    "aten._local_scalar_dense": "`.item()` or a condition",
    "aten.nonzero": "`nonzero()`, `x[mask]` or similar",
    "aten.index": "`x[mask]`",
    "aten.masked_select": "`masked_select()`",
    "aten._unique2": "`unique()`",
    "aten.unique_dim": "`unique()`",
    "aten.unique_consecutive": "`unique_consecutive()`",
}
"""Python code that calls the operators which return values to Python, or results whose shape depends on values."""


def is_own(filename: str) -> bool:
    """Return whether code in this file belongs to torch, to the trace or to Python itself, not to the recipe."""
    return filename.startswith((_TORCH, *_OWN, "<", contextlib.__file__))


def python_syntax(operator: object) -> str:
    """Return the Python code that calls an operator, or an empty string."""
    return _PYTHON_SYNTAX.get(str(operator).rpartition(".")[0], "")
