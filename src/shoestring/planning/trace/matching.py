"""Detection: what DETR and its relatives in transformers compute from values on the host.

They assign predicted objects to true ones, and their encoders check in training whether all values are finite.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from shoestring.planning.trace.values import assumed


def set_up() -> None:
    """Replace the assignment by one of the same size, and let checks pass, if the recipe has imported such models."""
    losses = sys.modules.get("transformers.loss.loss_for_object_detection")
    if losses is None or not hasattr(losses, "ImageLoss"):
        return
    losses.__dict__["linear_sum_assignment"] = _assign_in_order
    # The number of boxes, by which the losses are divided, is read from the device.
    _run_within(losses.ImageLoss, assumed)
    _run_within(losses.ImageLoss, _PassingChecks)  # that boxes are not empty
    for name, module in list(sys.modules.items()):
        if name.startswith("transformers.models.") and "detr.modeling_" in name:
            for kind in [kind for kind in vars(module).values() if isinstance(kind, type)]:
                if kind.__module__ == name and kind.__name__.endswith("EncoderLayer"):
                    _run_within(kind, _PassingChecks)


def _run_within(kind: Any, context: Callable[[], AbstractContextManager[Any]]) -> None:
    """Let the class's `forward` run within the context."""
    original = kind.forward

    @functools.wraps(original)
    def forward(self: Any, *arguments: Any, **options: Any) -> Any:
        with context():
            return original(self, *arguments, **options)

    kind.forward = forward


def _assign_in_order(costs: Tensor) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return as many pairs of a row and a column as scipy's `linear_sum_assignment`."""
    count = min(costs.shape)
    return np.arange(count), np.arange(count)


class _PassingChecks(TorchDispatchMode):
    """A mode in which a condition with `all()` is true, such as `isfinite(values).all()`."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._checks: list[Tensor] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default and any(args[0] is check for check in self._checks):
            return True
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.all.default:
            self._checks.append(result)
        return result
