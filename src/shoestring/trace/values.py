"""What an optimizer is told that asks the pretend device for a value."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.utils._python_dispatch import TorchDispatchMode

ANSWER = 0.5
"""Neither it nor what it lacks to 1 is zero, by which an optimizer might divide."""


@contextmanager
def answered() -> Iterator[None]:
    """Within it a floating-point `item()` that nobody knows is answered.

    Adafactor takes norms from the device to scale its steps; whatever they are, no size depends on them. A truth
    value, by which code could go another way, stays without an answer.
    """
    mode: Any = _Answered
    with mode():
        yield


class _Answered(TorchDispatchMode):
    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        try:
            return func(*args, **(kwargs or {}))
        except DataDependentOutputException:
            if func is torch.ops.aten._local_scalar_dense.default and args[0].is_floating_point():
                return ANSWER
            raise
