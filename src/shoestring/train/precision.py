"""The arithmetic of a step: fp32, or automatic mixed precision in bf16 or fp16, the latter with loss scaling."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from shoestring.settings import Precision


@dataclass(frozen=True, kw_only=True)
class Arithmetic:
    """`autocast()` wraps forward and loss; `scaler` scales the loss where fp16 gradients would vanish."""

    name: Precision
    autocast: Callable[[], AbstractContextManager[object]]
    scaler: torch.amp.GradScaler | None


def arithmetic(name: Precision, device: torch.device) -> Arithmetic:
    """The arithmetic called `name` on `device`."""
    if name == "fp32":
        return Arithmetic(name=name, autocast=nullcontext, scaler=None)
    dtype = torch.float16 if name == "fp16" else torch.bfloat16
    return Arithmetic(
        name=name,
        autocast=lambda: torch.autocast(device.type, dtype=dtype),
        scaler=torch.amp.GradScaler(device.type) if name == "fp16" else None,
    )
