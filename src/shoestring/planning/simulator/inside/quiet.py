"""What is observed must not disturb the script: an error of an observer is noted, and the script's work goes on."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")

_errors: dict[str, str] = {}
_returned: set[str] = set()


def quiet(function: Callable[..., Result]) -> Callable[..., Result | None]:
    """The same function, which returns None where it would raise an exception."""

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Result | None:
        try:
            return function(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - whatever it is, the script's own work goes on
            name = getattr(function, "__qualname__", repr(function))
            _errors.setdefault(name, f"{type(error).__name__}: {error}"[:500])
            return None

    return called


def new_errors() -> dict[str, str]:
    """The first error of each function that raised one, if it was not told by an earlier call."""
    errors = {name: text for name, text in _errors.items() if name not in _returned}
    _returned.update(errors)
    return errors
