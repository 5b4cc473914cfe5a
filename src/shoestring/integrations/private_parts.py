"""What is used of the private parts of transformers' and TRL's trainers.

Written for transformers 5.23 and TRL 1.16. A version without them is served by public means alone, which cost more.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

STATE_FILE = "trainer_state.json"
"""The only file that a trainer itself reads of the folder it resumes from: it says which update it is."""


def available(base: type) -> bool:
    """Whether the trainer class `base` has the private parts."""
    return hasattr(base, "_load_from_checkpoint") and hasattr(base, "_get_train_sampler")


def resuming(base: Any) -> Any:
    """The trainer class `base`, or a subclass of it that resumes from a folder without weights.

    The state is restored by the callback `on_train_begin`, and of that folder the library needs the state file alone:
    those of optimizer, scaler and random numbers are optional. Only the weights it insists on.

    A checkpoint of the library's own is replaced by a call of `save_instead`. Most are asked for in a way that
    callbacks see, but not those of `save_strategy="best"`.
    """
    if not available(base):
        return base

    class Resuming(base):  # type: ignore[misc]
        def _load_from_checkpoint(self, *_: Any, **__: Any) -> None:
            """Weights are restored with all else."""

        def _save_checkpoint(self, *_: Any, **__: Any) -> None:
            self.save_instead()

        def _get_train_sampler(self, *args: Any, **kwargs: Any) -> Any:
            self.train_sampler = super()._get_train_sampler(*args, **kwargs)
            return self.train_sampler

    return Resuming


def write_resume_folder(folder: Path, trainer: Any, state: Mapping[str, Any]) -> None:
    """Make `folder` one that `trainer.train(resume_from_checkpoint=folder)` takes."""
    (folder / STATE_FILE).write_text(json.dumps(state), encoding="utf-8")
    if not available(type(trainer)):
        trainer.save_model(str(folder))  # which the library loads, before the right weights are restored


def order_generator(trainer: Any) -> torch.Generator | None:
    """The generator of the trainer's own order of samples; None if that follows from torch's global one."""
    sampler = getattr(trainer, "train_sampler", None)
    if sampler is None:
        batches = getattr(trainer.callback_handler.train_dataloader, "batch_sampler", None)
        sampler = getattr(batches, "sampler", None)
    generator = getattr(sampler, "generator", None)
    return generator if isinstance(generator, torch.Generator) else None


def between_cycles(trainer: Any) -> bool:
    """Whether a TRL trainer has learnt from everything that it generated: the rest would be in no checkpoint."""
    args = trainer.args
    steps = getattr(args, "steps_per_generation", None)
    if not steps:
        return True
    # TRL counts microbatches itself, from 0 in each session; cycles are whole when a session begins.
    done = getattr(trainer, "_step", trainer.state.global_step * args.gradient_accumulation_steps)
    return bool(done % (steps * getattr(trainer, "num_iterations", 1)) == 0)
