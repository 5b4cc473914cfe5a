"""The callbacks through which a library's trainer takes the steps of training."""

from __future__ import annotations

import math
import time
from typing import Any

from transformers import TrainerCallback

from shoestring.data.seeding import derive, seed_all
from shoestring.integrations.private_parts import between_cycles, order_generator
from shoestring.integrations.session import TrainerSession
from shoestring.session.stop import SessionOver
from shoestring.train import steps


class TrainingEnded(Exception):  # noqa: N818  (an event that unwinds the library's loop, not an error)
    """Training is over before the library's loop begins, which cannot be left out otherwise."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class StepsCallback(TrainerCallback):
    """Seeds each update; between updates takes the steps that the engine's own loop takes."""

    def __init__(self, trainer: Any, trainer_session: TrainerSession) -> None:
        self._trainer, self._trainer_session = trainer, trainer_session
        self._update_began = 0.0

    def on_train_begin(self, args: Any, state: Any, *_: Any, **__: Any) -> None:  # noqa: ARG002
        """The model is on its device, and its optimizer is made.

        Raises SessionOver or TrainingEnded: the library would make one more update before it stopped.
        """
        session = self._trainer_session.session
        self._trainer_session.state.take_over()
        self._trainer_session.reports.begin(state.global_step)
        self._trainer_session.begin()
        session.record.update = state.global_step
        if session.request.loaded and (reason := steps.before_update(session)):
            raise TrainingEnded(reason)

    def on_epoch_begin(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
        """An epoch's order is a function of seed and epoch: a sampler that goes on with one generator from epoch to
        epoch (TRL 1.16, `RepeatSampler`) would begin again with the first epoch's.
        """
        epoch = math.floor(state.epoch or 0.0)
        seed_all(derive(args.seed, "epoch", epoch))
        if generator := order_generator(self._trainer):
            generator.manual_seed(derive(args.seed, "order", epoch))

    def on_step_begin(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
        self._update_began = time.monotonic()
        seed_all(derive(args.seed, "update", state.global_step))

    def on_step_end(self, args: Any, state: Any, control: Any, **__: Any) -> None:  # noqa: ARG002
        session = self._trainer_session.session
        session.request.stop.deadline.observe("update", time.monotonic() - self._update_began)
        session.record.update = state.global_step
        wanted, control.should_save = control.should_save, False  # by the trainer's arguments: our checkpoint instead
        if not between_cycles(self._trainer):
            return
        if wanted:
            steps.save_meanwhile(session)
        steps.save_if_due(session)
        if not steps.epoch_ended(session):  # the library logs an epoch's last update before the epoch ends
            self._stop_if_over(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **__: Any) -> None:  # noqa: ARG002
        wanted, control.should_save = control.should_save, False
        if wanted and between_cycles(self._trainer):
            steps.save_meanwhile(self._trainer_session.session)
        if not self._trainer_session.over:
            self._stop_if_over(control)

    def on_log(self, args: Any, state: Any, *_: Any, logs: Any = None, **__: Any) -> None:
        self._trainer_session.reports.log(args, state, logs or {})

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Saved before anything else happens, in a script as well."""
        steps.save_now(self._trainer_session.session)

    def _stop_if_over(self, control: Any) -> None:
        try:
            reason = steps.before_update(self._trainer_session.session)
        except SessionOver as over:
            self._trainer_session.over = over
            reason = over.reason
        control.should_training_stop = control.should_training_stop or bool(reason)
