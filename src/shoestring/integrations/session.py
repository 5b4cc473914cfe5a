"""The training session of a library's trainer, for its callbacks."""

from __future__ import annotations

import math
import time
from typing import Any

from shoestring.integrations.state import LibraryState
from shoestring.monitor.host_memory import host_memory
from shoestring.monitor.sampling import sample
from shoestring.session.stop import SessionOver
from shoestring.train import steps
from shoestring.train.session import TrainingSession


class TrainerSession:
    """A training session, the reason why it stopped, and the logs of its trainers.

    A session has several trainers if microbatches become smaller on out-of-memory.
    """

    def __init__(self) -> None:
        self._session: TrainingSession | None = None
        self._is_started = False
        self.reports = LogReports(self)
        self.over: SessionOver | None = None
        """The reason why the session stopped before the end of training."""

    @property
    def session(self) -> TrainingSession:
        """The session, which has to be set before a trainer trains."""
        assert self._session is not None
        return self._session

    @session.setter
    def session(self, session: TrainingSession) -> None:
        self._session = session

    @property
    def state(self) -> LibraryState:
        """The state of the present trainer."""
        assert isinstance(self.session.state, LibraryState)
        return self.session.state

    def begin(self) -> None:
        """Record the start of the session, once; a replay is not recorded."""
        if not self._is_started and self.session.watch_trainer is None:
            self._is_started = True
            steps.begin(self.session)


class LogReports:
    """The values that a trainer logs, reported as progress."""

    def __init__(self, trainer_session: TrainerSession) -> None:
        self._trainer_session = trainer_session
        self._updates = 0
        self._since = self._paused_at = time.monotonic()

    def begin(self, update: int) -> None:
        """Start to report a trainer that continues after `update` updates."""
        self._updates, self._since = update, time.monotonic()

    def flush(self) -> None:
        """Start a pause, which is no training time. Nothing is reported, because the library decides when it logs."""
        self._paused_at = time.monotonic()

    def restart(self) -> None:
        """End the pause."""
        self._since += time.monotonic() - self._paused_at

    def log(self, args: Any, state: Any, logs: dict[str, Any]) -> None:
        """Report the updates since the library last logged."""
        updates, logged_at = state.global_step - self._updates, time.monotonic()
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
            "seconds": logged_at - self._since,
            "memory_bytes": memory.gpu_peak_reserved_bytes or memory.rss_bytes,
        }
        session.record.progress.update(**measured, session_seconds_left=session.request.stop.deadline.remaining())
        metrics = {name: value for name, value in logs.items() if isinstance(value, int | float)}
        session.record.events.emit(
            "progress",
            **measured,
            learning_rate=metrics.pop("learning_rate", None),
            gradient_norm=metrics.pop("grad_norm", None),
            skipped=0,
            metrics=metrics,
            **memory.gpu_facts(),
            **host_memory().usage(),
        )
        self._updates, self._since = state.global_step, logged_at
