"""When to save: seldom enough to cost little, often enough to lose little."""

import time
from collections.abc import Callable
from typing import Any

from shoestring.checkpoint.store import Store
from shoestring.session.deadline import Deadline
from shoestring.settings import Settings
from shoestring.train.environment import require_same
from shoestring.train.record import Record
from shoestring.train.state import TrainingState

_COST = 0.02  # of the time may go into saving
_LONGEST = 600.0  # seconds of work that a kill may cost


class SavePolicy:
    """After each update: is a full checkpoint due?

    By default the time between saves is the last save's duration over 2%, at most ten minutes.
    """

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self._updates = settings.save_every_updates
        self._seconds = settings.save_every_seconds
        self._clock = clock
        self._saved_at = clock()
        self._interval = self._seconds if self._seconds is not None else _LONGEST

    def saved(self, seconds: float) -> None:
        """A save took so long and has just ended."""
        self._saved_at = self._clock()
        if self._seconds is None:
            self._interval = min(_LONGEST, seconds / _COST)

    def due(self, update: int) -> bool:
        """Whether to save now that `update` updates are done."""
        if self._updates is not None and update % self._updates == 0:
            return True
        return self._clock() - self._saved_at >= self._interval


class Saver:
    """A run's full checkpoints, and when to write the next."""

    def __init__(
        self, store: Store, settings: Settings, record: Record, deadline: Deadline, environment: dict[str, Any]
    ) -> None:
        """`environment` is what decides the bits here; it is saved with the state and held against it on restoring."""
        self._store, self._record, self._deadline, self._environment = store, record, deadline, environment
        self._policy = SavePolicy(settings)
        self._written: tuple[int, int] | None = None

    def save(self, state: TrainingState) -> None:
        """Write the state, unless it is the one that was written or read last."""
        stamp = (state.update, len(state.history))
        if stamp == self._written:
            return
        with self._deadline.measure("save"):
            saved = self._store.save(state.update, {**state.pack(), "environment": self._environment})
        self._policy.saved(saved.seconds)
        self._written = stamp
        self._record.saved(saved)

    def due(self, update: int) -> bool:
        return self._policy.due(update)

    def restore(self, state: TrainingState, *, allow_inexact: bool) -> bool:
        """Bring `state` to the newest checkpoint that verifies; False where there is none yet.

        Raises QuestionError when it was saved under something else that decides the bits, unless that is allowed.
        """
        restored = self._store.load()
        if restored is None:
            return False
        changed = require_same(restored.state["environment"], self._environment, allow_inexact=allow_inexact)
        state.restore(restored.state)
        if changed:
            self._record.note("from here on not bit for bit the run that began: " + "; ".join(changed))
        else:
            self._written = (state.update, len(state.history))
        return True
