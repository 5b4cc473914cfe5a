"""The callbacks through which a library's trainer calls the steps of training.

| step (`training/steps.py`, `save_steps.py`) | where the engine's own loop calls it | where a library's trainer does |
|---|---|---|
| `begin` | `setup` | `on_train_begin`, when the number of updates is known |
| `before_update` | the loop | `on_train_begin`, `end_update` |
| `one_update` | the loop | the library makes the update |
| `save_if_due` | the loop | `end_update` |
| `return_to_checkpoint` | out-of-memory in the optimizer's step | out-of-memory anywhere in an update |

The library logs and evaluates after its callbacks, so `end_update` waits for both: a checkpoint contains the log with
what the library accumulates for its next entry, and a continued run ends with the log of an uninterrupted one.
"""

from __future__ import annotations

import math
import time
from typing import Any

from transformers import TrainerCallback

from shoestring.integrations import private_parts
from shoestring.integrations.evaluations import Evaluations, final_metrics
from shoestring.integrations.exchange import GradientExchange, exchange_of
from shoestring.integrations.private_parts import find_order_generator, is_between_cycles
from shoestring.integrations.session import TrainerSession
from shoestring.integrations.splitting import SplitUpdates
from shoestring.training import save_steps, steps
from shoestring.training.data.seeding import derive, seed_all
from shoestring.training.session.stop import SessionOver


class TrainingEnded(Exception):  # noqa: N818  (an event that unwinds the library's loop, not an error)
    """Training ends before the library's loop starts. Only an exception can skip that loop."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class StepsCallback(TrainerCallback):
    """Seeds each update, and between updates calls the same steps as the engine's own loop."""

    def __init__(self, trainer: Any, trainer_session: TrainerSession) -> None:
        self._trainer, self._trainer_session = trainer, trainer_session
        self._evaluations = Evaluations(trainer, trainer_session)
        self._exchange: GradientExchange | None = None
        self._update_started_at = 0.0
        self._epoch: int | None = None
        self._is_epoch_over = self._is_save_requested = self._is_saved = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **__: Any) -> None:
        """Restore the state, now that the model is on its device and the optimizer exists, and start the session.

        Raises SessionOver or TrainingEnded if there is nothing to train: a stop requested through `control` would
        take effect only after one more update.
        """
        session = self._trainer_session.session
        self._trainer_session.agreement.require_all()
        self._exchange = exchange_of(session)
        if self._exchange is None and session.request.loaded is None:
            # A recipe's trainer is made again. Several processes would have to divide their microbatches together.
            self._trainer.split_updates = SplitUpdates(self._trainer, self._trainer_session, self._seed_update)
        is_ended = self._trainer_session.state.is_ended(state.max_steps)
        load_notes = self._trainer_session.state.load_restored()
        self._trainer_session.reports.begin(self._trainer)
        self._evaluations.begin()
        self._trainer_session.begin()
        for note in load_notes:
            session.record.note(note)
        if session.watch_trainer:
            session.watch_trainer(self._trainer)
        session.record.update = state.global_step
        if session.request.loaded and (reason := steps.before_update(session)):
            raise TrainingEnded(reason)
        if is_ended and session.request.loaded:
            raise TrainingEnded("the trainer stopped by itself")
        control.should_training_stop = control.should_training_stop or is_ended
        if state.global_step:
            args.eval_on_start = False  # the run has started in an earlier session

    def on_epoch_begin(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
        """Make the order of samples a function of seed and epoch.

        A sampler that uses one generator for all epochs (TRL 1.16, `RepeatSampler`) would start again with the first
        epoch's order after a resume.
        """
        # Data without a length may begin again at a fraction: the library takes the whole run for one epoch.
        self._epoch = epoch = math.floor(state.epoch or 0.0) if self._epoch is None else self._epoch + 1
        seed_all(derive(args.seed, "epoch", epoch))
        if generator := find_order_generator(self._trainer):
            generator.manual_seed(derive(args.seed, "order", epoch))

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._trainer_session.agreement.require_all()
        self._update_started_at, self._is_epoch_over = time.monotonic(), False
        self._evaluations.record()  # that of `eval_on_start`, or of an old version of the library
        self._trainer_session.reports.report_if_due(self._trainer)
        self._seed_update()
        if self._exchange:
            self._exchange.begin_update()

    def _seed_update(self) -> None:
        # A process draws numbers of its own: two of them may generate from the same prompt.
        number, update = self._trainer_session.processes.number, self._trainer.state.global_step
        seed_all(derive(self._trainer.args.seed, "update", update, *(("rank", number) if number else ())))

    def end_microbatch(self) -> None:
        """Exchange the gradients of several processes after the last microbatch of an update."""
        if self._exchange and self._trainer.accelerator.sync_gradients:
            self._trainer_session.agreement.require_all()
            self._exchange.exchange()

    def on_step_end(self, args: Any, state: Any, control: Any, **__: Any) -> None:  # noqa: ARG002
        session = self._trainer_session.session
        if session.state.averages and not self._trainer.accelerator.optimizer_step_was_skipped:
            session.state.averages.add()
        session.request.stop.deadline.observe("update", time.monotonic() - self._update_started_at)
        session.record.update = state.global_step
        self._end_library_part(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **__: Any) -> None:  # noqa: ARG002
        self._is_epoch_over = True
        if self._trainer_session.over:
            # The session stops within the epoch, which the library would evaluate and log as a whole one.
            control.should_log = control.should_evaluate = False
        self._end_library_part(control)

    def _end_library_part(self, control: Any) -> None:
        """Make a save that the trainer's arguments request as a checkpoint of the run, at the end of the update.

        Without the library's private methods the update ends here, before the library logs and evaluates it.
        """
        self._is_save_requested, control.should_save = self._is_save_requested or control.should_save, False
        if not private_parts.has_private_parts(type(self._trainer)):
            self.end_update()

    def request_save(self) -> None:
        """Save a checkpoint of the run at the end of the update."""
        self._is_save_requested = True

    def end_update(self) -> None:
        """Save and stop if it is time to, now that the library has logged and evaluated what belongs to the update.

        The last update of an epoch ends with the epoch, which the library logs and evaluates as well.
        """
        control, session = self._trainer.control, self._trainer_session.session
        self._trainer_session.agreement.require_all()
        self._evaluations.record()
        if self._trainer_session.over or not (self._is_epoch_over or self._is_within_epoch(control)):
            return
        is_save_requested, self._is_save_requested = self._is_save_requested, False
        if is_between_cycles(self._trainer):
            if is_save_requested:
                save_steps.save_in_background(session)
            save_steps.save_if_due(session)
            self._stop_if_over(control)
        elif self._is_epoch_over:
            self._stop_if_over(control)

    def _is_within_epoch(self, control: Any) -> bool:
        """Return whether the library makes another update before it ends the epoch."""
        is_last = float(self._trainer.state.epoch or 0.0).is_integer()
        return not (is_last or control.should_epoch_stop or control.should_training_stop)

    def on_log(self, args: Any, state: Any, *_: Any, logs: Any = None, **__: Any) -> None:
        self._trainer_session.reports.log(args, state, logs or {})

    def on_evaluate(self, *_: Any, metrics: Any = None, **__: Any) -> None:
        self._evaluations.add(metrics or {})

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self.end_training()

    def end_training(self) -> None:
        """Save before any other code runs, in a user's script as well; then load the best weights if that is requested.

        It is called twice where the library has the private methods: before its summary, and at its end.
        """
        if self._is_saved:
            return
        self._is_saved = True
        self._trainer_session.agreement.require_all()
        session = self._trainer_session.session
        self._evaluations.record()
        self._trainer_session.reports.report_unlogged(self._trainer)
        save = save_steps.save_now if self._trainer_session.over else save_steps.save_end
        save(session)
        if session.request.loaded is None:
            self._trainer_session.metrics = final_metrics(self._trainer.state)
        if not self._trainer_session.over:
            self._evaluations.load_best()

    def _stop_if_over(self, control: Any) -> None:
        try:
            reason = steps.before_update(self._trainer_session.session)
        except SessionOver as over:
            self._trainer_session.over = over
            reason = over.reason
        if reason or control.should_training_stop:
            self._trainer_session.state.end_log()
            control.should_training_stop = True
