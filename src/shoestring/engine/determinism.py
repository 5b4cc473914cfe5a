"""The same bits from the same state: kernels whose result does not depend on the order in which threads finish."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_WARN = 1
"""Of torch's modes: deterministic kernels, and a warning where there is none."""


@contextmanager
def deterministic() -> Iterator[None]:
    """Within it torch runs deterministic kernels where it has them, and warns where it has none.

    cuBLAS needs a fixed workspace for it, which has to be set before CUDA starts; so enter it before the first use.
    cuDNN does not try kernels against each other: which one wins would depend on the moment.
    """
    memory: Any = torch.utils.deterministic
    before = (
        torch.get_deterministic_debug_mode(),
        memory.fill_uninitialized_memory,
        torch.backends.cudnn.benchmark,
    )
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    _choose(_WARN)
    # Filling memory that is about to be overwritten finds bugs in kernels; it costs a pass over every new tensor.
    memory.fill_uninitialized_memory = False
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        _choose(before[0])
        memory.fill_uninitialized_memory = before[1]
        torch.backends.cudnn.benchmark = before[2]


def _choose(mode: int) -> None:
    """As `torch.use_deterministic_algorithms`, which for its own setting would load the compiler; where that comes
    later, `techniques/uncompiled.py` tells it."""
    torch.set_deterministic_debug_mode(mode)
    if "torch._inductor" in sys.modules:
        torch.use_deterministic_algorithms(mode != 0, warn_only=mode == _WARN)
