"""What a trainer is told, and tells, at each of its steps."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

import torch
from transformers import TrainerCallback

from shoestring.data.seeding import derive, seed_all
from shoestring.engine.environment import device_name
from shoestring.monitor.sampling import sample
from shoestring.session.stop import SessionOver

if TYPE_CHECKING:
    from shoestring.integrations.trainer import Survival


class Told(TrainerCallback):
    """Seeds each update, polls the clock after it, has the state saved when that is due."""

    def __init__(self, trainer: Any, survival: Survival) -> None:
        self._trainer, self._survival = trainer, survival
        self._began = self._since = time.monotonic()
        self._counted = 0

    def on_train_begin(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
        """The model is on its device, restored or as it was made."""
        if not self._survival.begun:  # a session may take several trainers, each in smaller microbatches
            self._begin(args, state)
        self._survival.record.progress.__enter__()
        self._counted, self._since = state.global_step, time.monotonic()
        if not state.global_step:
            # Before the first update: a disk that cannot hold a checkpoint is found out now, not in an hour.
            self._trainer.saver.save(self._trainer._kept)
        self._evaluate(state)

    def on_epoch_end(self, args: Any, state: Any, *_: Any, **__: Any) -> None:  # noqa: ARG002
        if not self._survival.ended:
            self._evaluate(state)

    def _evaluate(self, state: Any) -> None:
        """Where an epoch has ended that is not evaluated yet; the session before may have ended in the midst of it.

        Raises SessionOver, all being saved, where the evaluation does not fit into this session.
        """
        kept, epoch = self._trainer._kept, state.epoch or 0.0
        if not self._survival.evaluate or epoch != len(kept.history) + 1:
            return
        try:
            self._survival.evaluate(self._trainer, kept.history)
        except SessionOver:
            self._trainer.saver.save(kept)
            raise

    def _begin(self, args: Any, state: Any) -> None:
        self._survival.begun = True
        record = self._survival.record
        record.expect(state.max_steps)
        record.update, self._survival.total_updates = state.global_step, state.max_steps
        precision = "fp16" if args.fp16 else "bf16" if args.bf16 else "fp32"
        settings = self._survival.settings.replace(micro_batch=args.per_device_train_batch_size, precision=precision)
        record.started(state.global_step, device=device_name(args.device), settings=settings)
        for note in self._survival.notes:
            record.note(note)

    def on_epoch_begin(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
        """An epoch's order is a function of seed and epoch: a sampler that goes on with one generator from epoch to
        epoch (TRL 1.16, `RepeatSampler`) would begin again with the first epoch's.
        """
        epoch = math.floor(state.epoch or 0.0)
        seed_all(derive(args.seed, "epoch", epoch))
        generator = getattr(self._trainer._order, "generator", None)
        if isinstance(generator, torch.Generator):
            generator.manual_seed(derive(args.seed, "order", epoch))

    def on_step_begin(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
        self._began = time.monotonic()
        seed_all(derive(args.seed, "update", state.global_step))

    def on_step_end(self, args: Any, state: Any, control: Any, **__: Any) -> None:  # noqa: ARG002
        survival, saver = self._survival, self._trainer.saver
        survival.stop.deadline.observe("update", time.monotonic() - self._began)
        survival.record.update = state.global_step
        if not between_cycles(self._trainer):
            return
        if reason := survival.stop.reason():
            survival.ended = reason
            control.should_training_stop = True
        elif saver.due(state.global_step):
            saver.begin(self._trainer._kept)

    def on_log(self, args: Any, state: Any, *_: Any, logs: Any = None, **__: Any) -> None:
        """The trainer's own numbers become a line of progress."""
        logs = logs or {}
        if "loss" not in logs:
            return
        updates, now = state.global_step - self._counted, time.monotonic()
        if not updates:
            return
        memory = sample()
        record = self._survival.record
        measured = {
            "update": state.global_step,
            "epoch": math.ceil(state.epoch or 0.0),
            "updates": updates,
            "loss": float(logs["loss"]),
            "samples": updates * args.per_device_train_batch_size * args.gradient_accumulation_steps,
            "seconds": now - self._since,
            "memory_bytes": memory.gpu_peak_reserved_bytes or memory.rss_bytes,
        }
        record.progress.update(**measured, session_seconds_left=self._survival.stop.deadline.remaining())
        others = {name: value for name, value in logs.items() if isinstance(value, int | float)}
        record.events.emit(
            "progress",
            **measured,
            learning_rate=others.pop("learning_rate", None),
            gradient_norm=others.pop("grad_norm", None),
            skipped=0,
            metrics=others,
            **memory.gpu_facts(),
        )
        self._counted, self._since = state.global_step, now

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Saved before anything else happens; a trainer that has ended by itself as well."""
        self._trainer.saver.save(self._trainer._kept)


def between_cycles(trainer: Any) -> bool:
    """Whether a TRL trainer has used up what it wrote: completions not yet learnt from are in no checkpoint."""
    steps = getattr(trainer.args, "steps_per_generation", None)
    return not steps or trainer._step % (steps * getattr(trainer, "num_iterations", 1)) == 0
