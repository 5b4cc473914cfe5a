"""Deterministic kernels: the same state gives the same bits, whatever the order in which threads finish."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from shoestring.hardware import cublas
from shoestring.training.data.batches import single_thread
from shoestring.training.engine.attention import deterministic_attention

_WARN = 1
"""torch's debug mode in which kernels are deterministic, with a warning for operators that have no such kernel."""


@contextmanager
def deterministic_shards(logical_shards: int | None, device: torch.device) -> Iterator[None]:
    """Run deterministic kernels that give the same bits in any number of processes that share the logical shards.

    A sum over several threads is rounded differently, and each of several processes on a CPU has one thread.
    """
    has_one_thread = (logical_shards or 1) > 1 and device.type == "cpu"
    with deterministic(), single_thread() if has_one_thread else nullcontext():
        yield


@contextmanager
def deterministic() -> Iterator[None]:
    """Run torch's deterministic kernels within the context, with a warning for operators that have none.

    cuBLAS needs a fixed workspace, which has to be set before CUDA is initialized: enter the context before the first
    use of CUDA. cuDNN's benchmark mode is off within it, since the kernel that it selects depends on timing.
    """
    memory: Any = torch.utils.deterministic
    before = (
        torch.get_deterministic_debug_mode(),
        memory.fill_uninitialized_memory,
        torch.backends.cudnn.benchmark,
    )
    os.environ.setdefault(cublas.CONFIG_VARIABLE, cublas.TRAINING_CONFIG)
    _set_mode(_WARN)
    # Filling memory that is about to be overwritten reveals bugs in kernels, at the cost of a pass over every tensor.
    memory.fill_uninitialized_memory = False
    torch.backends.cudnn.benchmark = False
    try:
        with deterministic_attention():
            yield
    finally:
        _set_mode(before[0])
        memory.fill_uninitialized_memory = before[1]
        torch.backends.cudnn.benchmark = before[2]


def _set_mode(mode: int) -> None:
    """Set the mode as `torch.use_deterministic_algorithms` does, but without importing the compiler for its own flag.

    If the compiler is imported later, `techniques/deferred_compiler.py` sets that flag.
    """
    torch.set_deterministic_debug_mode(mode)
    if "torch._inductor" in sys.modules:
        torch.use_deterministic_algorithms(mode != 0, warn_only=mode == _WARN)
