"""The outcome of a training session."""

from dataclasses import dataclass
from typing import Any, Literal

from shoestring.base.display import Displayed


@dataclass(frozen=True, kw_only=True)
class Outcome(Displayed):
    """The result of a session."""

    status: Literal["finished", "paused"]
    """Whether the run is finished, or can be continued by the same command."""
    reason: str
    """Why the session has ended."""
    update: int
    """The number of updates that the run has made."""
    total_updates: int
    """The number of updates of the whole run."""
    metrics: dict[str, Any]
    """The metrics by part of the data: the best validation metrics so far, and the test metrics once the run is
    finished."""
    test_weights: str = ""
    """The weights of which the test metrics are: those of the best epoch, or others if these were lost; empty if there
    are no test metrics."""

    @property
    def finished(self) -> bool:
        """Whether the run has made all of its updates."""
        return self.status == "finished"
