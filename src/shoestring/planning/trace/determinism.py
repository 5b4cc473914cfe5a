"""The operators of PyTorch's deterministic mode in a trace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def deterministic_operators() -> Iterator[None]:
    """Let torch's Python code choose deterministic operators, as in training (`training/engine/determinism.py`).

    On a GPU `interpolate` computes linear interpolation by several operators then.
    """
    memory: Any = torch.utils.deterministic
    before = torch.get_deterministic_debug_mode(), memory.fill_uninitialized_memory
    torch.set_deterministic_debug_mode("warn")
    memory.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before[0])
        memory.fill_uninitialized_memory = before[1]
