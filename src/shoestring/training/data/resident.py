"""Keeping a small dataset on the GPU: nothing is copied during training, and no worker processes are needed.

The protocol is two attributes: `nbytes`, the bytes of the dataset's tensors, and `to(device)`, which returns a dataset
with the tensors on that device. Its `__getitems__` and the recipe's `collate` then run on the device.
"""

from typing import Any

import torch

_SHARE = 0.01  # of the GPU's memory, which is less than the uncertainty of memory estimates


def resident(dataset: Any, device: torch.device) -> Any | None:
    """Return `dataset` on `device`; None if it is too large, cannot be moved, or `device` is not a GPU."""
    if device.type != "cuda":
        return None
    total = torch.cuda.get_device_properties(device).total_memory
    return dataset.to(device) if fits(dataset, int(_SHARE * total)) else None


def fits(dataset: Any, limit_bytes: int) -> bool:
    """Return whether the dataset can be moved and takes at most `limit_bytes`."""
    return (
        hasattr(dataset, "to")
        and hasattr(dataset, "__getitems__")
        and getattr(dataset, "nbytes", limit_bytes + 1) <= limit_bytes
    )
