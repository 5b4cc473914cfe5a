"""A placeholder for values that the engine and optimizers read from the simulated device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")

PLACEHOLDER = 0.5
"""Neither this value nor 1 minus it is zero, so an optimizer can divide by both."""

ARE_ASSUMED: ContextVar[bool] = ContextVar("ARE_ASSUMED", default=False)
"""Whether a floating-point `item()` of a fake tensor returns the placeholder (`HostMode.dispatch` in `fake.py`).

The engine reads the weight of an update and the scale of fp16, Adafactor norms; no size depends on them. Reading a
boolean, which could change the control flow, still raises.
"""


@contextmanager
def assumed(*, are_assumed: bool = True) -> Iterator[None]:
    """Within the context, values that are read are assumed."""
    token = ARE_ASSUMED.set(are_assumed)
    try:
        yield
    finally:
        ARE_ASSUMED.reset(token)


def known_in(function: Callable[..., T]) -> Callable[..., T]:
    """Return the function, in which reading a value raises: what a recipe reads may decide what it does."""

    def call(*arguments: Any, **options: Any) -> T:
        with assumed(are_assumed=False):
            return function(*arguments, **options)

    return call
