"""Uses of private attributes and methods of transformers' and TRL's trainers.

Written for transformers 4.56 to 5.23 and TRL 1.10 to 1.16. For a version without them only public interfaces are used,
which cost more.
"""

from __future__ import annotations

import inspect
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

STATE_FILE = "trainer_state.json"
"""The only file that a trainer itself requires in the folder it resumes from: it contains the number of the update."""

_METHODS = ("set_initial_training_values", "_load_from_checkpoint", "_get_train_sampler", "_maybe_log_save_evaluate")
_SUM_OF_LOSSES = "_tr_loss"
"""A tensor: the sum of the losses since the last log. Before transformers 5.2 it is a variable of the training loop."""
_LOSSES = ("_total_loss_scalar", "_globalstep_last_logged", "_initial_global_step")
"""The numbers that belong to that sum: the losses already logged, and the updates over which means are computed."""
_COUNTS_OF_STEPS = ("_total_train_tokens", "entropy_coef", "_last_world_entropy")
"""The numbers that TRL's trainers accumulate besides their public state."""
_COUNTS = ("current_flos", *_COUNTS_OF_STEPS)
"""The other numbers that a trainer accumulates; the library counts the operations after each microbatch."""


def has_private_parts(base: type) -> bool:
    """Return whether the trainer class `base` has the private methods that are used here."""
    return all(hasattr(base, method) for method in _METHODS)


def make_resuming_class(base: Any) -> Any:
    """Return a subclass of the trainer class `base` that resumes from a folder without weights.

    Without the private methods, `base` itself is returned. The state is restored by the callback `on_train_begin`. Of
    that folder the library requires the state file and the weights; the files of the optimizer, the scaler and the
    random numbers are optional.

    A checkpoint of the library's own is replaced by a call of `save_run_checkpoint`. Callbacks see most requests for a
    checkpoint, but not those of `save_strategy="best"`. `end_update` is called when the library has logged and
    evaluated an update, and again when it has logged and evaluated an epoch, and `end_training` after the last of them:
    no callback is called at these moments.
    """
    base = _make_class_of_whole_epochs(base) if _counts_continued_epochs_from_0(base) else base
    if not has_private_parts(base):
        return base
    base = base if hasattr(base, "_run_epoch") else _make_class_of_parts(base)

    class Resuming(base):  # type: ignore[misc]
        max_updates: int | None = None
        """The run ends after this many updates if its epochs have more."""
        continues_repeated_data = hasattr(base, "_init_training_state")
        """Whether data without a length that has begun again continues where it was."""

        def set_initial_training_values(self, *args: Any, **kwargs: Any) -> Any:
            """Return the numbers of updates and epochs, the schedule's total among them."""
            values = super().set_initial_training_values(*args, **kwargs)
            if self.max_updates is None or values[-1] <= self.max_updates:
                return values
            self.args.max_steps = self.max_updates
            return super().set_initial_training_values(*args, **kwargs)

        def _init_training_state(self, *args: Any, **kwargs: Any) -> tuple[int, int]:
            """Return the epochs and the microbatches of the present one that a continued run skips.

            For data without a length the library takes all updates of the run for one epoch, and skips none of the
            later ones when such data ends earlier and is begun again.
            """
            skipped: tuple[int, int] = super()._init_training_state(*args, **kwargs)
            microbatches = self.microbatches_of_saved_epoch()
            if microbatches is None or hasattr(self.train_dataset, "__len__"):
                return skipped
            epoch = self.state.epoch or 0.0
            return int(epoch), round((epoch - int(epoch)) * microbatches)

        def _load_from_checkpoint(self, *_: Any, **__: Any) -> None:
            """Load nothing: the weights are restored together with the rest of the state."""

        def _load_callback_state(self) -> None:
            """Restore nothing: the states of callbacks are always restored, in the callbacks themselves."""

        def _save_checkpoint(self, *_: Any, **__: Any) -> None:
            self.save_run_checkpoint()

        def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
            super()._maybe_log_save_evaluate(*args, **kwargs)
            self.end_update()

        def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
            """Make no update if the run has ended in an earlier session; the library would make at least one."""
            if not self.control.should_training_stop:
                super()._run_epoch(*args, **kwargs)

        def _finalize_training(self, trial: Any, num_train_samples: Any, _: float) -> Any:
            """Log the mean loss and the speed of the whole run, which has the seconds of earlier sessions as well."""
            self.end_training()
            return super()._finalize_training(trial, num_train_samples, self.train_started_at)

        def _get_train_sampler(self, *args: Any, **kwargs: Any) -> Any:
            self.train_sampler = super()._get_train_sampler(*args, **kwargs)
            return self.train_sampler

    return Resuming


def _counts_continued_epochs_from_0(base: type) -> bool:
    """Return whether the loop of the trainer class `base` counts the microbatches of a continued epoch from 0.

    That of transformers 4.56 does, and has the number of those that it skipped in a variable. From 4.57 on it counts
    the skipped ones as well.
    """
    loop = getattr(base, "_inner_training_loop", None)
    code = getattr(inspect.unwrap(loop), "__code__", None) if loop else None
    return code is not None and "steps_skipped" in code.co_varnames


def _make_class_of_whole_epochs(base: Any) -> Any:
    """Return a subclass of `base` that makes the last update of a continued epoch if that has fewer microbatches.

    The loop of transformers 4.56 ends an update at a multiple of `gradient_accumulation_steps`, or at the number of
    microbatches of a whole epoch, which it does not reach in a continued one. It would add the gradients of the
    last microbatches to those of the next epoch. It takes the multiple from the arguments before each microbatch, so
    the last one of the continued epoch gets another multiple.
    """

    class OfWholeEpochs(base):  # type: ignore[misc]
        _remaining_microbatches: int | None = None
        """Of the epoch in which this session began; None until that is known, and 0 in later epochs."""

        def set_initial_training_values(self, *args: Any, **kwargs: Any) -> Any:
            """Note how many updates and microbatches an epoch has."""
            values = super().set_initial_training_values(*args, **kwargs)
            self._updates_of_epoch, self._microbatches_of_epoch = values[1], values[5]
            self._accumulation_steps, self._remaining_microbatches = self.args.gradient_accumulation_steps, None
            return values

        def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
            """Return the microbatches of an update. This is called before the first one is counted."""
            samples = super().get_batch_samples(*args, **kwargs)
            if self._remaining_microbatches is None:
                updates = self.state.global_step % self._updates_of_epoch
                count = (self._microbatches_of_epoch or 0) - updates * self._accumulation_steps
                self._remaining_microbatches = self._last_microbatch = max(count, 0) if updates else 0
            self._prepare_next_microbatch()
            return samples

        def training_step(self, *args: Any, **kwargs: Any) -> Any:
            """Return the loss of a microbatch. This is called after it is counted, and before the next one is."""
            self.args.gradient_accumulation_steps = self._accumulation_steps
            loss = super().training_step(*args, **kwargs)
            if self._remaining_microbatches:
                self._remaining_microbatches -= 1
                self._prepare_next_microbatch()
            return loss

        def _prepare_next_microbatch(self) -> None:
            """Set the multiple for the last microbatch of the epoch: it ends the update, and begins it if it is alone.

            The loop ends an update if the microbatch's number, from 1, is a multiple; it begins one if the number
            before it is.
            """
            if self._remaining_microbatches == 1 and (in_update := self._last_microbatch % self._accumulation_steps):
                self.args.gradient_accumulation_steps = 1 if in_update == 1 else self._last_microbatch

    return OfWholeEpochs


def _make_class_of_parts(base: Any) -> Any:
    """Return a subclass of `base`, whose training loop is one method, with the parts that later versions have.

    Before transformers 5.2, `_inner_training_loop` has neither `_run_epoch` nor `_finalize_training`, and the sum of
    the losses since the last log is its variable `tr_loss`.
    """

    class OfParts(base):  # type: ignore[misc]
        def set_initial_training_values(self, *args: Any, **kwargs: Any) -> Any:
            """Begin the sum of the losses, which is restored after this; of a run that has ended, train no epoch."""
            self._tr_loss, self._is_sum_restored = torch.tensor(0.0, device=self.args.device), False
            epochs, *sizes, total_updates = super().set_initial_training_values(*args, **kwargs)
            self._epochs, self._is_ended = epochs, self.is_run_ended(total_updates)
            return (0 if self._is_ended else epochs, *sizes, total_updates)

        def end_restoring(self) -> None:
            """Add the restored sum to those logged, for a run that has ended: it has no first microbatch."""
            if self._is_ended:
                self._total_loss_scalar += self._tr_loss.item()

        def training_step(self, *args: Any, **kwargs: Any) -> Any:
            """Return the loss of a microbatch; that of the first has the restored sum, because the loop's own is 0."""
            loss = super().training_step(*args, **kwargs)
            if self._is_sum_restored or not bool(torch.isfinite(loss)):
                return loss
            self._is_sum_restored = True
            return loss + self._tr_loss

        def _maybe_log_save_evaluate(self, tr_loss: Any, *args: Any, **kwargs: Any) -> None:
            if self._is_sum_restored:
                self._tr_loss = tr_loss
            super()._maybe_log_save_evaluate(tr_loss, *args, **kwargs)

        def log(self, logs: dict[str, Any], *args: Any, **kwargs: Any) -> None:
            if "train_runtime" in logs:  # the summary of training, the library's last log
                self.state.num_train_epochs, self._summary = self._epochs, logs
                self._finalize_training(None, None, None)
            super().log(logs, *args, **kwargs)

        def _finalize_training(self, _trial: Any, _num_train_samples: Any, start_time: Any) -> None:
            """Let the summary's speeds be those of the time since `start_time`."""
            seconds, session_seconds = time.time() - start_time, self._summary["train_runtime"]
            self._summary["train_runtime"] = round(seconds, 4)
            for name in {"train_samples_per_second", "train_steps_per_second"} & self._summary.keys():
                self._summary[name] = round(self._summary[name] * session_seconds / seconds, 3)

    return OfParts


def loss_since_log(trainer: Any) -> tuple[float, int] | None:
    """Return the sum of the losses since the trainer's last log, and its updates; None if the sum is out of reach."""
    if not hasattr(trainer, _SUM_OF_LOSSES):
        return None
    return float(getattr(trainer, _SUM_OF_LOSSES)), trainer.state.global_step - trainer._globalstep_last_logged


def write_resume_folder(folder: Path, trainer: Any, state: Mapping[str, Any]) -> None:
    """Write the files to `folder` that `trainer.train(resume_from_checkpoint=folder)` requires."""
    # Before transformers 5.2 the batch size of the folder is taken, which may be that before an out-of-memory error.
    state = {**state, "train_batch_size": trainer.args.train_batch_size}
    (folder / STATE_FILE).write_text(json.dumps(state), encoding="utf-8")
    if not has_private_parts(type(trainer)):
        trainer.save_model(str(folder))  # the library loads these, before the checkpoint's weights are restored


def pack_accumulated(trainer: Any) -> dict[str, Any]:
    """Return what the trainer has accumulated for its next logs, and the seconds of training so far, as JSON."""
    numbers = {name: _as_number(getattr(trainer, name)) for name in sorted(_accumulated_names(trainer))}
    metrics = getattr(trainer, "_metrics", {}).get("train", {})  # TRL logs the means of these lists
    return {
        "numbers": numbers,
        "metrics": {name: [_as_number(value) for value in values] for name, values in metrics.items()},
        "training": trainer.model.training,  # TRL logs other metrics after an evaluation
        "seconds": time.time() - trainer.train_started_at,
    }


def restore_accumulated(trainer: Any, saved: Mapping[str, Any]) -> None:
    """Restore what `pack_accumulated` returned; nothing for a checkpoint of version 0.1.0."""
    trainer.train_started_at = time.time() - saved.get("seconds", 0.0)
    numbers = saved.get("numbers", {})
    for name in numbers.keys() & _accumulated_names(trainer):
        if name == _SUM_OF_LOSSES:
            getattr(trainer, name).fill_(numbers[name])
        else:
            setattr(trainer, name, numbers[name])
    for name, values in saved.get("metrics", {}).items() if hasattr(trainer, "_metrics") else ():
        trainer._metrics["train"][name] = list(values)
    if hasattr(trainer, "end_restoring"):
        trainer.end_restoring()


def accumulated_values(trainer: Any) -> Any:
    """Return a copy of what the methods of a TRL trainer accumulate for its log while they make an update."""
    numbers = {name: getattr(trainer, name) for name in _COUNTS_OF_STEPS if hasattr(trainer, name)}
    metrics = {
        mode: {name: list(values) for name, values in lists.items()}
        for mode, lists in getattr(trainer, "_metrics", {}).items()
    }
    return numbers, metrics


def set_accumulated_values(trainer: Any, values: Any) -> None:
    """Restore what `accumulated_values` returned."""
    numbers, metrics = values
    for name, number in numbers.items():
        setattr(trainer, name, number)
    for mode, lists in metrics.items():
        trainer._metrics[mode].clear()
        trainer._metrics[mode].update({name: list(values) for name, values in lists.items()})


def _accumulated_names(trainer: Any) -> set[str]:
    losses = (_SUM_OF_LOSSES, *_LOSSES) if hasattr(trainer, _SUM_OF_LOSSES) else ()
    return {name for name in (*losses, *_COUNTS) if hasattr(trainer, name)}


def _as_number(value: Any) -> Any:
    return float(value) if isinstance(value, torch.Tensor | float) else value


def find_order_generator(trainer: Any) -> torch.Generator | None:
    """Return the generator of the trainer's order of samples; None if the order depends on torch's global generator."""
    sampler = getattr(trainer, "train_sampler", None)
    if sampler is None:
        batches = getattr(trainer.callback_handler.train_dataloader, "batch_sampler", None)
        sampler = getattr(batches, "sampler", None)
    generator = getattr(sampler, "generator", None)
    return generator if isinstance(generator, torch.Generator) else None


def is_between_cycles(trainer: Any) -> bool:
    """Return whether a TRL trainer has trained on all generated samples, which a checkpoint would not include."""
    args = trainer.args
    steps = getattr(args, "steps_per_generation", None)
    if not steps:
        return True
    # TRL counts microbatches itself, from 0 in each session; a session starts at the start of a cycle.
    micro_batches = getattr(trainer, "_step", trainer.state.global_step * args.gradient_accumulation_steps)
    return bool(micro_batches % (steps * getattr(trainer, "num_iterations", 1)) == 0)
