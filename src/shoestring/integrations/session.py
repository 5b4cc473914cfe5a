"""The training session of a library's trainer, for its callbacks."""

from __future__ import annotations

import math
import time
from functools import cached_property
from typing import Any

from shoestring.integrations.agreement import Agreement
from shoestring.integrations.private_parts import loss_since_log
from shoestring.integrations.state import LibraryState
from shoestring.training import steps
from shoestring.training.engine.memory import UnusedMemoryWatch
from shoestring.training.monitor.host_memory import host_memory
from shoestring.training.monitor.sampling import sample
from shoestring.training.processes.one_process import Processes
from shoestring.training.session.stop import SessionOver
from shoestring.training.training_session import TrainingSession


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
        self.metrics: dict[str, Any] = {}
        """The validation metrics of a script's run so far, in the form of state.json."""

    @property
    def is_set(self) -> bool:
        """Whether there is a session, which is one training."""
        return self._session is not None

    @property
    def session(self) -> TrainingSession:
        """The session, which has to be set before a trainer trains."""
        assert self._session is not None
        return self._session

    @session.setter
    def session(self, session: TrainingSession) -> None:
        self._session = session

    @property
    def processes(self) -> Processes:
        """The processes that train together."""
        return self.session.processes

    @cached_property
    def agreement(self) -> Agreement:
        """The agreement of the processes that train together."""
        return Agreement(self.processes)

    @property
    def state(self) -> LibraryState:
        """The state of the present trainer."""
        assert isinstance(self.session.state, LibraryState)
        return self.session.state

    def begin(self) -> None:
        """Record the start of the session, once, unless the session is discarded."""
        if not self._is_started and not self.session.is_discarded:
            self._is_started = True
            steps.begin(self.session)


class LogReports:
    """The values that a trainer logs, reported as progress; also the updates between two logs that are far apart."""

    def __init__(self, trainer_session: TrainerSession, every_seconds: float = 10.0) -> None:
        """Updates that the trainer does not log for `every_seconds` are reported with their loss alone."""
        self._trainer_session, self._every_seconds = trainer_session, every_seconds
        self._updates = self._logged_update = 0
        self._reported_loss = 0.0
        self._since = self._paused_at = time.monotonic()
        self._unused_memory = UnusedMemoryWatch('surviving(..., allocator="expandable")')

    def begin(self, trainer: Any) -> None:
        """Start to report a trainer that continues after its present number of updates."""
        self._reported_loss, updates = self._loss_of_all(trainer) or (0.0, 0)
        self._updates, self._since = trainer.state.global_step, time.monotonic()
        self._logged_update = self._updates - updates

    def flush(self) -> None:
        """Start a pause, which is no training time. Nothing is reported, because the library decides when it logs."""
        self._paused_at = time.monotonic()

    def restart(self) -> None:
        """End the pause."""
        self.exclude(time.monotonic() - self._paused_at)

    def exclude(self, seconds: float) -> None:
        """Exclude seconds that were spent on something other than updates."""
        self._since += seconds

    def log(self, args: Any, state: Any, logs: dict[str, Any]) -> None:
        """Report the updates since the library last logged, or since `report_unlogged`."""
        if "loss" not in logs:
            return
        loss, updates = float(logs["loss"]), state.global_step - self._updates
        if self._reported_loss and updates:
            loss = (loss * (state.global_step - self._logged_update) - self._reported_loss) / updates
        self._reported_loss, self._logged_update = 0.0, state.global_step
        metrics = {name: value for name, value in logs.items() if isinstance(value, int | float)}
        self._report(args, state, loss, metrics)

    def report_if_due(self, trainer: Any) -> None:
        """Report the updates so far if the library has not logged them for some time."""
        if time.monotonic() - self._since >= self._every_seconds:
            # Each of several processes knows its own loss only, and they do not report at the same time.
            is_only = self._trainer_session.processes.count == 1
            self._report_unlogged(trainer, loss_since_log(trainer) if is_only else None)

    def report_unlogged(self, trainer: Any) -> None:
        """Report the updates that the library has not logged yet. All processes call it."""
        self._report_unlogged(trainer, self._loss_of_all(trainer))

    def _loss_of_all(self, trainer: Any) -> tuple[float, int] | None:
        """Return the sum of the losses since the trainer's last log, as a mean over the processes, and its updates."""
        sums = loss_since_log(trainer)
        if sums is None:
            return None
        return self._trainer_session.processes.mean(sums[0]), sums[1]

    def _report_unlogged(self, trainer: Any, sums: tuple[float, int] | None) -> None:
        updates = trainer.state.global_step - self._updates
        if not updates:
            return
        loss = None
        if sums:
            loss, self._reported_loss = (sums[0] - self._reported_loss) / updates, sums[0]
        self._report(trainer.args, trainer.state, loss, {})

    def _report(self, args: Any, state: Any, loss: float | None, metrics: dict[str, Any]) -> None:
        updates, reported_at = state.global_step - self._updates, time.monotonic()
        if not updates:
            return
        memory = sample()
        session = self._trainer_session.session
        samples = args.per_device_train_batch_size * args.gradient_accumulation_steps * session.processes.count
        measured: dict[str, Any] = {
            "update": state.global_step,
            "epoch": math.ceil(state.epoch or 0.0),
            "updates": updates,
            "loss": loss,
            "samples": updates * samples,
            "seconds": reported_at - self._since,
            "memory_bytes": memory.gpu_peak_reserved_bytes or memory.rss_bytes,
        }
        if loss is not None:
            seconds_left = session.request.stop.deadline.remaining()
            session.record.progress.update(**measured, session_seconds_left=seconds_left, metrics=metrics)
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
        if message := self._unused_memory.observe(
            memory.gpu_peak_allocated_bytes, memory.gpu_peak_reserved_bytes, memory.gpu_total_bytes or 0
        ):
            session.record.note(message)
        self._updates, self._since = state.global_step, reported_at
