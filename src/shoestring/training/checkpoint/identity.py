"""Which run a file is of: the id that each run has from its start, with what decides what the run learns."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_ID = re.compile(r"[0-9a-f]{32}")
_SHORT = 8
"""Characters of an id in a message."""


@dataclass(frozen=True, kw_only=True)
class RunIdentity:
    """A run, as its files name it. Two runs are the same one if they have the same id."""

    id: str
    """32 random hexadecimal digits, drawn when the run begins. Copies of the run have the same one."""
    recipe: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The options that the run was started with, the seed and the data among them; empty for a script."""

    def __post_init__(self) -> None:
        if not isinstance(self.id, str) or not _ID.fullmatch(self.id):
            raise ValueError(f"the id of the run is {str(self.id)[:40]!r}, not 32 hexadecimal digits")
        if not isinstance(self.recipe, str) or not isinstance(self.options, dict):
            raise ValueError("the run has no valid recipe and options")

    @classmethod
    def from_json(cls, value: Any) -> RunIdentity:
        """Return the identity in a file. Raises ValueError."""
        if not isinstance(value, dict) or not {"id"} <= value.keys() <= {"id", "recipe", "options"}:
            raise ValueError("the run is not an object with id, recipe and options")
        return cls(**value)

    def json(self) -> dict[str, Any]:
        """Return the JSON object that `from_json` reads."""
        return {"id": self.id, "recipe": self.recipe, "options": dict(self.options)}

    @property
    def short_id(self) -> str:
        """The beginning of the id, for messages."""
        return self.id[:_SHORT]


def new_id() -> str:
    """Return the id of a run that begins. No seed decides it: runs that are equal in every bit are different runs."""
    return os.urandom(16).hex()


def is_id(value: object) -> bool:
    """Return whether `value` is the id of a run."""
    return isinstance(value, str) and _ID.fullmatch(value) is not None
