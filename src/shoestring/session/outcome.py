"""The outcome of a training session."""

from dataclasses import dataclass
from typing import Any, Literal

from shoestring.display import Displayed


@dataclass(frozen=True, kw_only=True)
class Outcome(Displayed):
    """The result of a session."""

    status: Literal["finished", "paused"]
    reason: str
    update: int
    total_updates: int
    metrics: dict[str, Any]
    """By part of the data: the best validation metrics so far, and the test metrics once the run is finished."""
