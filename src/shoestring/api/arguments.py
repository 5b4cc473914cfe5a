"""Arguments that several verbs have."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from shoestring.base.errors import UsageError

if TYPE_CHECKING:
    pass


def checked_path(value: str | Path) -> Path:
    """Return the path. Raises UsageError if it has a NUL character, which no path can have."""
    if "\0" in str(value):
        raise UsageError(f"{str(value)!r} is not a path", hint="a path has no NUL character")
    return Path(value)


def require_limits(**values: float | None) -> None:
    """Raise UsageError for a limit or a price that is negative, infinite or not a number."""
    problems = [f"{name} is {value}" for name, value in values.items() if value is not None and not 0 <= value <= 2**63]
    if problems:
        raise UsageError(
            "limits and prices are numbers from 0 to 2**63", problems=problems, hint="leave out what has no limit"
        )
