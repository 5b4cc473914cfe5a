"""Expandable segments of torch's CUDA allocator, which it reads from the environment when it starts."""

import os
import sys
from collections.abc import Mapping
from typing import Any

VARIABLE, _OPTION = "PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"


def expandable_segments(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variable with expandable segments besides what it has; empty if it has them."""
    value = environment.get(VARIABLE)
    if value and _OPTION in value:
        return {}
    return {VARIABLE: f"{value},{_OPTION}" if value else _OPTION}


def enable() -> bool:
    """Make torch's CUDA allocator use expandable segments, also if torch is imported; return whether it does for sure.

    Segments that it has already stay as they are. torch 2.10 and later have a function for it.
    """
    variables = expandable_segments()
    os.environ.update(variables)
    torch: Any = sys.modules.get("torch")
    if not variables or torch is None:
        return True
    set_options = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
    if set_options is None:
        return False
    set_options(os.environ[VARIABLE])
    return True
