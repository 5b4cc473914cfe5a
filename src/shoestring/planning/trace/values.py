"""A placeholder for values that an optimizer reads from the simulated device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.utils._python_dispatch import TorchDispatchMode

PLACEHOLDER = 0.5
"""Neither this value nor 1 minus it is zero, so an optimizer can divide by both."""


@contextmanager
def replace_unknown_values() -> Iterator[None]:
    """Within the context, a floating-point `item()` of a fake tensor returns the placeholder.

    Adafactor reads norms from the device to scale its steps, and no size depends on them. Reading a boolean, which
    could change the control flow, still raises.
    """
    mode: Any = _PlaceholderMode
    with mode():
        yield


class _PlaceholderMode(TorchDispatchMode):
    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        try:
            return func(*args, **(kwargs or {}))
        except DataDependentOutputException:
            if func is torch.ops.aten._local_scalar_dense.default and args[0].is_floating_point():
                return PLACEHOLDER
            raise
