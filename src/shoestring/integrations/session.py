"""The session that a library's trainer trains in, as its callbacks see it."""

from __future__ import annotations

import math
import time
from typing import Any

from shoestring.integrations.state import LibraryState
from shoestring.monitor.sampling import sample
from shoestring.session.stop import SessionOver
from shoestring.train import steps
from shoestring.train.session import TrainingSession


class TrainerSession:
    """A training session, how it ended, and what its trainers have logged: it may take several, each in smaller
    microbatches.
    """

    def __init__(self) -> None:
        self._session: TrainingSession | None = None
        self._begun = False
        self.reports = LogReports(self)
        self.over: SessionOver | None = None
        """Why the session stopped before training was over."""

    @property
    def session(self) -> TrainingSession:
        """The session; it is set before a trainer trains."""
        assert self._session is not None
        return self._session

    @session.setter
    def session(self, session: TrainingSession) -> None:
        self._session = session

    @property
    def state(self) -> LibraryState:
        """The state of the trainer that trains now."""
        assert isinstance(self.session.state, LibraryState)
        return self.session.state

    def begin(self) -> None:
        """Record the session's beginning, once."""
        if not self._begun:
            self._begun = True
            steps.begin(self.session)


class LogReports:
    """A trainer's own numbers as lines of progress."""

    def __init__(self, trainer_session: TrainerSession) -> None:
        self._trainer_session = trainer_session
        self._updates = 0
        self._since = self._paused_at = time.monotonic()

    def begin(self, update: int) -> None:
        """A trainer begins after `update` updates."""
        self._updates, self._since = update, time.monotonic()

    def flush(self) -> None:
        """The library reports when it logs; what follows is left out of the time until then."""
        self._paused_at = time.monotonic()

    def restart(self) -> None:
        self._since += time.monotonic() - self._paused_at

    def log(self, args: Any, state: Any, logs: dict[str, Any]) -> None:
        """The library has logged the updates since it last did."""
        updates, now = state.global_step - self._updates, time.monotonic()
        if "loss" not in logs or not updates:
            return
        memory = sample()
        session = self._trainer_session.session
        measured = {
            "update": state.global_step,
            "epoch": math.ceil(state.epoch or 0.0),
            "updates": updates,
            "loss": float(logs["loss"]),
            "samples": updates * args.per_device_train_batch_size * args.gradient_accumulation_steps,
            "seconds": now - self._since,
            "memory_bytes": memory.gpu_peak_reserved_bytes or memory.rss_bytes,
        }
        session.record.progress.update(**measured, session_seconds_left=session.request.stop.deadline.remaining())
        others = {name: value for name, value in logs.items() if isinstance(value, int | float)}
        session.record.events.emit(
            "progress",
            **measured,
            learning_rate=others.pop("learning_rate", None),
            gradient_norm=others.pop("grad_norm", None),
            skipped=0,
            metrics=others,
            **memory.gpu_facts(),
        )
        self._updates, self._since = state.global_step, now
