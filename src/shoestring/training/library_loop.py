"""What a library's trainer provides that makes the updates instead of the engine."""

from collections.abc import Mapping
from typing import Any, Protocol

from shoestring.training.engine.state import State
from shoestring.training.request import SessionRequest
from shoestring.training.training_session import Reports, TrainingSession


class LibraryLoop(Protocol):
    """A library's trainer that makes the updates instead of the engine: `integrations/library.py`."""

    @property
    def reports(self) -> Reports:
        """The reports of the updates that the trainer makes."""

    def build(self, request: SessionRequest, samples: Any, saved: Mapping[str, Any] | None) -> State:
        """Return the state of a trainer for the training part `samples`, with the sizes of the `saved` one if given."""

    def environment(self) -> dict[str, Any]:
        """Return what determines the bits in addition to `engine.environment`."""

    def run(self, session: TrainingSession) -> str:
        """Make all updates, in microbatches that fit, with `steps` between them. Returns the reason why training ended.

        Raises SessionOver when the session has to stop.
        """

    def close(self) -> None:
        """Remove the trainer's temporary files."""
