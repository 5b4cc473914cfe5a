"""The same bits from the same state: kernels whose result does not depend on the order in which threads finish."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def deterministic() -> Iterator[None]:
    """Within it torch runs deterministic kernels where it has them, and warns where it has none.

    cuBLAS needs a fixed workspace for it, which has to be set before CUDA starts; so enter it before the first use.
    cuDNN does not try kernels against each other: which one wins would depend on the moment.
    """
    memory: Any = torch.utils.deterministic
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        memory.fill_uninitialized_memory,
        torch.backends.cudnn.benchmark,
    )
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    # Filling memory that is about to be overwritten finds bugs in kernels; it costs a pass over every new tensor.
    memory.fill_uninitialized_memory = False
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        memory.fill_uninitialized_memory = before[2]
        torch.backends.cudnn.benchmark = before[3]
