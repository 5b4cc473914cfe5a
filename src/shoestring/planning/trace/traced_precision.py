"""The precision of a traced update: autocast with CUDA's casts, and torch's own scaler, which assumes no overflow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from shoestring.base.settings import Precision
from shoestring.planning.trace import autocast
from shoestring.planning.trace.simulated_device import DEVICE
from shoestring.training.engine.precision import MixedPrecision


def traced_precision(name: Precision, after_forward: Callable[[], None]) -> MixedPrecision:
    """Return the precision called `name`, which calls `after_forward` when the engine has computed a loss."""

    @contextmanager
    def region() -> Iterator[None]:
        with autocast.region(name):
            yield
        after_forward()

    return MixedPrecision(name=name, autocast=region, scaler=_Scaler(DEVICE) if name == "fp16" else None)


class _Scaler(torch.amp.GradScaler):
    """A scaler for which all gradients are finite. It reads that they are, as torch's does, and does not look."""

    def _maybe_opt_step(self, optimizer: Any, optimizer_state: Any, *args: Any, **kwargs: Any) -> Any:
        for overflow in optimizer_state["found_inf_per_device"].values():
            overflow.item()
        return optimizer.step(*args, **kwargs)
