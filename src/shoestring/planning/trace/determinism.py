"""The operators of PyTorch's deterministic mode in a trace."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import functional


@contextmanager
def deterministic_operators() -> Iterator[None]:
    """Let torch's Python code choose deterministic operators, as in training (`training/engine/determinism.py`).

    On a GPU `interpolate` computes linear interpolation by several operators then. `pad` repeats the values at a border
    by indices, and saves these for backward instead of its input.
    """
    memory: Any = torch.utils.deterministic
    before = torch.get_deterministic_debug_mode(), memory.fill_uninitialized_memory
    torch.set_deterministic_debug_mode("warn")
    memory.fill_uninitialized_memory = False
    try:
        with patch.object(functional, "pad", _pad_of_gpus(functional.pad)):
            yield
    finally:
        torch.set_deterministic_debug_mode(before[0])
        memory.fill_uninitialized_memory = before[1]


def _pad_of_gpus(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return torch's `pad` as it is for CUDA tensors (`pad` in `torch/nn/functional.py`, which asks for `is_cuda`)."""
    repeat_border = importlib.import_module("torch._decomp.decompositions")._replication_pad

    def pad(
        input: Tensor,  # noqa: A002 - the names are those of torch, since they may be given
        pad: Sequence[int],
        mode: str = "constant",
        value: float | None = None,
    ) -> Tensor:
        if mode == "replicate" and not input.is_cpu:
            result: Tensor = repeat_border(input, tuple(pad))
            return result
        return original(input, pad, mode, value)

    return pad
