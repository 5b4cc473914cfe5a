"""The state of a library's trainer, for checkpoints and for the steps of training."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from shoestring.base.errors import CheckpointError, UsageError
from shoestring.base.reading import COUNT, find_problems, number
from shoestring.integrations.learning import Learning
from shoestring.integrations.private_parts import pack_accumulated, restore_accumulated
from shoestring.integrations.unsaved_state import UnsavedState
from shoestring.recipe.parts import Parts
from shoestring.techniques import checkpointing, eightbit, memory_format
from shoestring.techniques.fallbacks import Limits, Sizes, least_micro_batch
from shoestring.techniques.norms import trains_batch_norm
from shoestring.training.checkpoint.compatibility import history_problems, state_mismatches
from shoestring.training.checkpoint.trained import state_like, trained_state
from shoestring.training.engine.averaging import AveragedWeights
from shoestring.training.engine.memory import out_of_memory
from shoestring.training.engine.parallel.fully_sharded import FullySharded
from shoestring.training.engine.precision import MixedPrecision
from shoestring.training.engine.untrained import UntrainedTensors
from shoestring.training.processes.one_process import ONE_PROCESS, Processes

if TYPE_CHECKING:
    from torch import nn

_ROUNDING = 1e-6
"""More than the rounding of a trainer's epochs, which are sums of fractions, and less than an update's share of one."""
_UNSAVED = (
    "these values have changed since the session began, and no checkpoint contains them: {}. A resumed run begins "
    "again with their first values, so it may learn something else if learning depends on them. Compute them from the "
    "number of the update (state.global_step), or save them in a callback that is an ExportableState"
)
_SECTIONS = {"model", "optimizer", "scheduler", "scaler", "trainer"}


@dataclass(kw_only=True)
class LibraryState:
    """An `engine.state.State` whose model, optimizer and number of updates belong to the trainer."""

    trainer: Any
    mixed_precision: MixedPrecision
    """For evaluations; the trainer has its own for updates."""
    sizes: Sizes
    build: Callable[[Sizes], Any] | None = None
    """Makes a new trainer with other sizes; None in a script with a trainer of its own."""
    whole_batch: bool = False
    """Whether the recipe's updates are never split."""
    history: list[dict[str, Any]] = field(default_factory=list)
    restored: Mapping[str, Any] = field(default_factory=dict)
    """A checkpoint's sections, until the trainer has created its optimizer and they can be loaded."""
    final_log: Mapping[str, Any] | None = None
    """The sections of the log after the session's last update. The trainer then logs a summary of the session, which is
    not part of the run."""
    ema: float | None = None
    """The decay of the averaged weights; None without an average."""
    averages: AveragedWeights | None = None
    """The averaged weights, once the model is on its device."""
    fully_sharded: FullySharded | None = None
    processes: Processes = ONE_PROCESS
    """The processes that train together."""
    learning: Learning | None = None
    """What decides learning in a script's run; a recipe's file and settings decide it otherwise."""
    report: Callable[[str], None] = lambda _: None
    """Reports a note to the user."""
    loss_rules: tuple[str, ...] = ()
    """How the losses of a microbatch's parts may add up to its own (`splitting.RULES`); empty until it is measured."""
    _other_logs: Sequence[Mapping[str, Any]] = ()
    """The logs of the other processes, while the state is saved."""
    _unsaved: UnsavedState | None = None
    """The state of the script's own code, in its run."""
    _untrained: UntrainedTensors | None = None
    """What the run changes besides the trained weights, such as a teacher; None where weights are divided."""

    @property
    def model(self) -> nn.Module:
        model: nn.Module = self.trainer.accelerator.unwrap_model(self.trainer.model)
        return model

    @property
    def optimizer(self) -> Any:
        return self.trainer.optimizer

    @property
    def update(self) -> int:
        return int(self._progress()["global_step"])

    @property
    def total_updates(self) -> int:
        return int(self._progress()["max_steps"])

    @property
    def epochs_done(self) -> int:
        epoch = self._progress()["epoch"] or 0
        # `max_updates` may end the run within an epoch, which is then over as well.
        return math.ceil(epoch - _ROUNDING) if self._is_complete else int(epoch)

    @property
    def at_epoch_end(self) -> bool:
        return self._is_complete or float(self._progress()["epoch"] or 0).is_integer()

    @property
    def _is_complete(self) -> bool:
        return 0 < self.total_updates == self.update

    def _progress(self) -> Mapping[str, Any]:
        progress: Mapping[str, Any] = self.restored["trainer"] if self.restored else vars(self.trainer.state)
        return progress

    def pack(self) -> dict[str, Any]:
        """Return the trained weights, the buffers, and all state that the trainer needs to continue."""
        trainer = self.trainer
        scaler = trainer.accelerator.scaler
        return {
            "model": self._model_section(),
            "optimizer": trainer.optimizer.state_dict(),
            "scheduler": trainer.lr_scheduler.state_dict(),
            "scaler": scaler.state_dict() if scaler else None,
            "fit": self.sizes.json(),
            "loss_rules": list(self.loss_rules),
            **self._current_log(),
            "history": self.history,
            **({"learning": self.learning.pack()} if self.learning else {}),
            **(self.averages.pack() if self.averages else {}),
        }

    def _model_section(self) -> dict[str, Any]:
        if self._untrained is None:
            return trained_state(self.model)
        self._untrained.observe()
        return self._untrained.pack()

    @contextmanager
    def collected(self) -> Iterator[None]:
        """Return a context in which the first process packs the logs of all of them: each sums its own losses.

        It is entered where the state is saved. What is not saved with it is reported.
        """
        if self._unsaved and (changes := self._unsaved.changes()):
            self.report(_UNSAVED.format("; ".join(changes)))
        self._other_logs = self.processes.collect(lambda: self._current_log()["log"])
        try:
            yield
        finally:
            self._other_logs = ()

    def _current_log(self) -> Mapping[str, Any]:
        sections = self.final_log or self._pack_log()
        return {**sections, "log": {**sections["log"], "others": self._other_logs}} if self._other_logs else sections

    def _pack_log(self) -> dict[str, Any]:
        """Return the sections of the trainer's log: its public state, and what it accumulates for its next logs."""
        trainer = self.trainer
        state = dataclasses.asdict(trainer.state) | {"stateful_callbacks": _callback_states(trainer)}
        try:
            progress = json.loads(json.dumps(state))
        except TypeError as error:
            raise UsageError(
                f"the trainer's state cannot be saved: {error}",
                hint="values that the trainer logs, and what a callback's state() returns, must be JSON: numbers, "
                "texts, lists and dicts",
            ) from error
        control = progress["stateful_callbacks"].get("TrainerControl", {}).get("args", {})
        if progress["global_step"] >= progress["max_steps"] > 0 and "should_training_stop" in control:
            # The library sets it soon after its last update, before or after a checkpoint of that update is written.
            control["should_training_stop"] = True
        return {"trainer": progress, "log": pack_accumulated(trainer)}

    def end_log(self) -> None:
        """Leave out of checkpoints what the trainer logs from now on. Call it after the session's last update."""
        self.final_log = self._pack_log()

    def is_ended(self, total_updates: int) -> bool:
        """Return whether the restored run has ended: all updates are made, or one of its callbacks has ended it."""
        saved = self.restored.get("trainer", {})
        control = (saved.get("stateful_callbacks") or {}).get("TrainerControl", {})
        is_stopped = control.get("args", {}).get("should_training_stop", False)
        return bool(saved) and bool(
            saved["global_step"] >= total_updates > 0 or (is_stopped and saved["max_steps"] == total_updates)
        )

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Store the sections until the trainer has created its optimizer; then `load_restored` loads them.

        Raises CheckpointError for a checkpoint that no trainer has saved.
        """
        if missing := _SECTIONS - saved.keys():
            raise CheckpointError(f"the checkpoint was not saved by a trainer: it lacks {', '.join(sorted(missing))}")
        history = saved.get("history", [])
        if problems := [*_progress_problems(saved["trainer"], self.trainer.state), *history_problems(history)]:
            raise CheckpointError("the checkpoint does not fit the trainer", problems=problems[:20])
        self.restored, self.history, self.final_log = saved, list(history), None
        self.sizes = self.sizes.resumed(saved.get("fit"), whole_batch=self.whole_batch)
        rules = saved.get("loss_rules")
        self.loss_rules = tuple(rule for rule in rules if isinstance(rule, str)) if isinstance(rules, list) else ()

    def load_restored(self) -> list[str]:
        """Load the restored sections, if any, into model, optimizer, schedule, loss scale, callbacks and log.

        Returns notes for the user. Raises CheckpointError if they belong to another model or optimizer, and UsageError
        if what decides learning has changed without permission.
        """
        log = self.restored.get("log", {})
        logs = [log, *log.get("others", [])]
        restore_accumulated(self.trainer, logs[self.processes.number] if self.processes.number < len(logs) else log)
        self.averages = AveragedWeights(self.model, self.ema) if self.ema is not None else None
        self._unsaved = UnsavedState(self.trainer) if self.learning else None
        self._untrained = None if self.fully_sharded else UntrainedTensors(self.model)
        if not self.restored:
            return self.learning.load({}) if self.learning else []
        trainer, saved = self.trainer, self.restored
        optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)  # that in Accelerate's wrapper
        if self.fully_sharded:
            saved = self.fully_sharded.own_rows(saved, optimizer)
        problems = state_mismatches(saved["model"], state_like(self.model, saved["model"]))
        problems += self.averages.problems(saved) if self.averages else []
        if problems:
            raise CheckpointError("the checkpoint is of another model", problems=problems[:20])
        self.model.load_state_dict(saved["model"], strict=False)
        if self._untrained:
            self._untrained.restore(saved["model"], lambda: self.model)  # a new trainer has a new model
        if self.averages:
            self.averages.restore(saved)
        try:
            # Copied, because a file's pages are not aligned like torch's allocations, and vectorized code may round the
            # ends of an unaligned tensor differently.
            saved = {**saved, "optimizer": _cloned(memory_format.with_strides(saved["optimizer"], optimizer))}
            if self.learning:
                load_notes = self.learning.load(saved)
            else:
                load_notes = []
                eightbit.load_states(optimizer, saved["optimizer"])
                trainer.lr_scheduler.load_state_dict(saved["scheduler"])
            if trainer.accelerator.scaler and saved["scaler"]:
                trainer.accelerator.scaler.load_state_dict(saved["scaler"])
        except (RuntimeError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
            if out_of_memory(error):
                raise
            raise CheckpointError(f"the checkpoint cannot be restored: {type(error).__name__}: {error}") from error
        _restore_callbacks(trainer, saved["trainer"].get("stateful_callbacks") or {})
        if self.is_ended(trainer.state.max_steps):  # no update follows that would set the mode
            trainer.model.train(saved.get("log", {}).get("training", True))
        self.restored = {}
        return load_notes

    def limits(self) -> Limits:
        return Limits(
            least_micro_batch=least_micro_batch(
                batch_norm=trains_batch_norm(self.model),
                whole_batch=self.sizes.micro_batch if self.whole_batch else None,
            ),
            # In a script nothing can make a trainer again that recomputes its activations.
            blocks=len(checkpointing.blocks(self.model, Parts())) if self.build else 0,
        )

    def release(self) -> None:
        """Drop the trainer; `resize` makes a new one."""
        self.trainer = self.averages = self.fully_sharded = None

    def resize(self, sizes: Sizes) -> None:
        assert self.build is not None
        self.sizes = sizes
        self.trainer = self.build(sizes)
        self.fully_sharded = self.trainer.fully_sharded


def _callback_states(trainer: Any) -> dict[str, Any]:
    """Return the states of the callbacks that have one, such as the patience of early stopping, by class."""
    from transformers import TrainerState
    from transformers.trainer_callback import ExportableState

    callbacks = [*trainer.callback_handler.callbacks, trainer.control]
    exportable: Any = [callback for callback in callbacks if isinstance(callback, ExportableState)]
    states: Any = TrainerState(stateful_callbacks=exportable).stateful_callbacks
    return dict(states)


def _restore_callbacks(trainer: Any, states: Mapping[str, Any]) -> None:
    """Restore the attributes of callbacks; the library does it only if its arguments request it."""
    for name, saved in states.items():
        callbacks = [callback for callback in trainer.callback_handler.callbacks if type(callback).__name__ == name]
        for callback, state in zip(callbacks, saved if isinstance(saved, list) else [saved], strict=False):
            for attribute, value in state.get("attributes", {}).items():
                setattr(callback, attribute, value)


def _progress_problems(saved: object, own: Any) -> list[str]:
    """Return the reasons why `saved` is not the state of a trainer whose present state is `own`."""
    if not isinstance(saved, dict):
        return ["trainer: it is not an object"]
    fields = {field.name for field in dataclasses.fields(own)}
    problems = [f"{name[:40]!r} is no field of a trainer's state" for name in sorted(saved.keys() - fields)]
    problems += [f"{name} is missing" for name in ("epoch", "global_step", "max_steps") if name not in saved]
    if (epoch := saved.get("epoch")) is not None and ((parsed := number(epoch)) is None or parsed < 0):
        problems.append(f"epoch: {str(epoch)[:40]!r} is not a number of epochs")
    problems += find_problems(saved, {"global_step": COUNT, "max_steps": COUNT})
    problems += [
        f"{name}: {str(value)[:40]!r} is not a {type(getattr(own, name)).__name__}"
        for name, value in saved.items()
        if isinstance(getattr(own, name, None), list | dict) and not isinstance(value, type(getattr(own, name)))
    ]
    return [f"trainer: {problem}" for problem in problems]


def _cloned(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {key: _cloned(item) for key, item in value.items()}
    return [_cloned(item) for item in value] if isinstance(value, list) else value
