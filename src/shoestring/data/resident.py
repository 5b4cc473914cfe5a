"""A dataset that is small lies on the GPU itself: nothing is copied during training, and no process fetches it.

The protocol is two attributes: `nbytes`, what its tensors take, and `to(device)`, the same samples with the tensors
there. Its `__getitems__` and the recipe's `collate` then run on the device.
"""

from typing import Any

import torch

_SHARE = 0.01  # of the GPU's memory: less than what an estimate of the rest is uncertain by


def resident(dataset: Any, device: torch.device) -> Any | None:
    """`dataset` on `device`; None where it is too large for that, cannot be moved, or there is no GPU to move it to."""
    if device.type != "cuda":
        return None
    total = torch.cuda.get_device_properties(device).total_memory
    return dataset.to(device) if fits(dataset, int(_SHARE * total)) else None


def fits(dataset: Any, room_bytes: int) -> bool:
    """Whether the dataset can be moved and takes at most `room_bytes`."""
    return (
        hasattr(dataset, "to")
        and hasattr(dataset, "__getitems__")
        and getattr(dataset, "nbytes", room_bytes + 1) <= room_bytes
    )
