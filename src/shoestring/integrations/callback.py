"""The callbacks through which a library's trainer takes the steps of training."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from shoestring.data.seeding import derive, seed_all
from shoestring.integrations.private_parts import between_cycles, order_generator
from shoestring.monitor.sampling import sample
from shoestring.session.stop import SessionOver
from shoestring.train import steps

if TYPE_CHECKING:
    from shoestring.integrations.trainer import ResumableTrainer


class TrainingEnded(Exception):  # noqa: N818  (an event that unwinds the library's loop, not an error)
    """Training is over before the library's loop begins, which cannot be left out otherwise."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class StepsCallback(TrainerCallback):
    """Seeds each update; between updates takes the steps that the engine's own loop takes."""

    def __init__(self, trainer: Any, resumable: ResumableTrainer) -> None:
        self._trainer, self._resumable = trainer, resumable
        self._update_began = 0.0

    def on_train_begin(self, args: Any, state: Any, *_: Any, **__: Any) -> None:  # noqa: ARG002
        """The model is on its device, and its optimizer is made.

        Raises SessionOver or TrainingEnded: the library would make one more update before it stopped.
        """
        session = self._resumable.session
        self._resumable.state.take_over()
        self._resumable.reports.begin(state.global_step)
        self._resumable.begin()
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
        session = self._resumable.session
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
        if wanted:
            steps.save_meanwhile(self._resumable.session)
        if not self._resumable.over:
            self._stop_if_over(control)

    def on_log(self, args: Any, state: Any, *_: Any, logs: Any = None, **__: Any) -> None:
        self._resumable.reports.log(args, state, logs or {})

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Saved before anything else happens, in a script as well."""
        steps.save_now(self._resumable.session)

    def _stop_if_over(self, control: Any) -> None:
        try:
            reason = steps.before_update(self._resumable.session)
        except SessionOver as over:
            self._resumable.over = over
            reason = over.reason
        control.should_training_stop = control.should_training_stop or bool(reason)


class LogReports:
    """A trainer's own numbers as lines of progress."""

    def __init__(self, resumable: ResumableTrainer) -> None:
        self._resumable = resumable
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
        session = self._resumable.session
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
