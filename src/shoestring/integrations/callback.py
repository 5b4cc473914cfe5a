"""The callbacks through which a library's trainer calls the steps of training."""

from __future__ import annotations

import math
import time
from typing import Any

from transformers import TrainerCallback

from shoestring.data.seeding import derive, seed_all
from shoestring.integrations.private_parts import find_order_generator, is_between_cycles
from shoestring.integrations.session import TrainerSession
from shoestring.session.stop import SessionOver
from shoestring.train import steps


class TrainingEnded(Exception):  # noqa: N818  (an event that unwinds the library's loop, not an error)
    """Training ends before the library's loop starts. Only an exception can skip that loop."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class StepsCallback(TrainerCallback):
    """Seeds each update, and between updates calls the same steps as the engine's own loop."""

    def __init__(self, trainer: Any, trainer_session: TrainerSession) -> None:
        self._trainer, self._trainer_session = trainer, trainer_session
        self._update_started_at = 0.0

    def on_train_begin(self, args: Any, state: Any, *_: Any, **__: Any) -> None:  # noqa: ARG002
        """Restore the state, now that the model is on its device and the optimizer exists, and start the session.

        Raises SessionOver or TrainingEnded if there is nothing to train: a stop requested through `control` would
        take effect only after one more update.
        """
        session = self._trainer_session.session
        self._trainer_session.state.load_restored()
        self._trainer_session.reports.begin(state.global_step)
        self._trainer_session.begin()
        session.record.update = state.global_step
        if session.request.loaded and (reason := steps.before_update(session)):
            raise TrainingEnded(reason)

    def on_epoch_begin(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
        """Make the order of samples a function of seed and epoch.

        A sampler that uses one generator for all epochs (TRL 1.16, `RepeatSampler`) would start again with the first
        epoch's order after a resume.
        """
        epoch = math.floor(state.epoch or 0.0)
        seed_all(derive(args.seed, "epoch", epoch))
        if generator := find_order_generator(self._trainer):
            generator.manual_seed(derive(args.seed, "order", epoch))

    def on_step_begin(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
        self._update_started_at = time.monotonic()
        seed_all(derive(args.seed, "update", state.global_step))

    def on_step_end(self, args: Any, state: Any, control: Any, **__: Any) -> None:  # noqa: ARG002
        session = self._trainer_session.session
        session.request.stop.deadline.observe("update", time.monotonic() - self._update_started_at)
        session.record.update = state.global_step
        # A save that the trainer's arguments request is made as a checkpoint of the run.
        is_save_requested, control.should_save = control.should_save, False
        if not is_between_cycles(self._trainer):
            return
        if is_save_requested:
            steps.save_in_background(session)
        steps.save_if_due(session)
        if not steps.epoch_ended(session):  # the library logs an epoch's last update before the epoch ends
            self._stop_if_over(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **__: Any) -> None:  # noqa: ARG002
        is_save_requested, control.should_save = control.should_save, False
        if is_save_requested and is_between_cycles(self._trainer):
            steps.save_in_background(self._trainer_session.session)
        if not self._trainer_session.over:
            self._stop_if_over(control)

    def on_log(self, args: Any, state: Any, *_: Any, logs: Any = None, **__: Any) -> None:
        self._trainer_session.reports.log(args, state, logs or {})

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Save before any other code runs, in a user's script as well."""
        steps.save_now(self._trainer_session.session)

    def _stop_if_over(self, control: Any) -> None:
        try:
            reason = steps.before_update(self._trainer_session.session)
        except SessionOver as over:
            self._trainer_session.over = over
            reason = over.reason
        control.should_training_stop = control.should_training_stop or bool(reason)
