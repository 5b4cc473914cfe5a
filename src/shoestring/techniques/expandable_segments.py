"""Expandable segments of torch's CUDA allocator, which it reads from the environment when it starts."""

import os
from collections.abc import Mapping

VARIABLE, _OPTION = "PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"


def expandable_segments(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variable with expandable segments besides what it has; empty if it has them."""
    value = environment.get(VARIABLE)
    if value and _OPTION in value:
        return {}
    return {VARIABLE: f"{value},{_OPTION}" if value else _OPTION}
