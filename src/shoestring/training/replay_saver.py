"""The saver of a replay, which restores the state that the replay begins with and saves nothing."""

from typing import Any

from shoestring.training.checkpoint.store import Restored, Store
from shoestring.training.engine.environment import differences
from shoestring.training.engine.memory import explaining_out_of_memory
from shoestring.training.engine.state import State
from shoestring.training.record import Record
from shoestring.training.request import SessionRequest
from shoestring.training.saving import Saver, saved_environment


class ReplaySaver(Saver):
    """Restores one checkpoint, or leaves a new state as it is."""

    def __init__(
        self,
        request: SessionRequest,
        record: Record,
        environment: dict[str, Any],
        restored: Restored | None,
        notes: list[str],
    ) -> None:
        """`notes` receives the differences between the checkpoint's environment and the present one."""

        def fail(update: int, quantity: str, value: float) -> Any:
            raise NotImplementedError(f"{quantity} of update {update}: {value}")  # nothing is saved

        store = Store(request.run.checkpoints)
        super().__init__(store, request.settings, record, request.stop.deadline, environment, non_finite_error=fail)
        self._restored, self._notes = restored, notes

    def restore(self, state: State, *, allow_inexact: bool, restored: Restored | None = None) -> bool:  # noqa: ARG002
        """Restore the state; the bits may differ under another environment, which is a note."""
        if self._restored:
            changes = differences(saved_environment(self._restored), self._environment)
            if changes and not any(note.startswith(_DIFFERENCE) for note in self._notes):
                self._notes.append(f"{_DIFFERENCE}: {'; '.join(changes)}")
            with explaining_out_of_memory("restoring the checkpoint"):
                state.restore(self._restored.state)
        return True

    def due(self, update: int) -> bool:  # noqa: ARG002
        return False

    def begin(self, state: State) -> None:
        """Save nothing."""

    def save(self, state: State) -> None:
        """Save nothing."""


_DIFFERENCE = "the bits may differ from those of the run"
