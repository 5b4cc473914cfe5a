"""The precision of a step: fp32, or automatic mixed precision in bf16 or fp16, the latter with loss scaling."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from shoestring.base.errors import UsageError
from shoestring.base.settings import Precision

MIN_LOSS_SCALE = 1.0
"""A loss scale below 1 makes gradients smaller than they are: if they still overflow, scaling is not the cause."""

NON_FINITE_LIMIT = {"fp32": 1, "bf16": 1, "fp16": 8}
"""Consecutive updates without a finite loss that end a run. In fp16 one unusual batch can overflow the forward; such an
update is skipped."""


@dataclass(frozen=True, kw_only=True)
class MixedPrecision:
    """`autocast()` wraps forward and loss; `scaler` scales the loss in fp16, whose gradients would underflow."""

    name: Precision
    autocast: Callable[[], AbstractContextManager[object]]
    """Returns the context of one forward and its loss."""
    scaler: torch.amp.GradScaler | None
    """None but in fp16. Its state belongs into a checkpoint."""


def mixed_precision(name: Precision, device: torch.device) -> MixedPrecision:
    """Return the precision called `name`, "fp32", "fp16" or "bf16", on `device`, for `update` and `Recovering`.

    Autocast computes in 16 bits what tolerates it; the weights keep their type. In fp16 the loss is scaled.

    Raises UsageError for bf16 on a GPU that only emulates it, as Turing does.
    """
    if name == "fp32":
        return MixedPrecision(name=name, autocast=nullcontext, scaler=None)
    if name == "bf16" and device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise UsageError(
            f"precision=bf16: {torch.cuda.get_device_name(device)} has no bf16 units and would emulate them, many "
            "times slower than fp32",
            hint="set precision=fp16",
        )
    dtype = torch.float16 if name == "fp16" else torch.bfloat16
    return MixedPrecision(
        name=name,
        autocast=lambda: torch.autocast(device.type, dtype=dtype),
        scaler=torch.amp.GradScaler(device.type) if name == "fp16" else None,
    )


def precision_note(name: Precision, device: torch.device) -> str | None:
    """Return a note for the user about `name` on `device`; None without one."""
    if name == "fp16" and device.type == "cpu":
        return "fp16 on a CPU is for tests: it is slower than fp32 there and less accurate"
    return None
