"""Uses of private attributes and methods of transformers' and TRL's trainers.

Written for transformers 5.23 and TRL 1.16. For a version without them only public interfaces are used, which cost more.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

STATE_FILE = "trainer_state.json"
"""The only file that a trainer itself requires in the folder it resumes from: it contains the number of the update."""


def has_private_parts(base: type) -> bool:
    """Return whether the trainer class `base` has the private methods that are used here."""
    return hasattr(base, "_load_from_checkpoint") and hasattr(base, "_get_train_sampler")


def make_resuming_class(base: Any) -> Any:
    """Return a subclass of the trainer class `base` that resumes from a folder without weights.

    Without the private methods, `base` itself is returned. The state is restored by the callback `on_train_begin`. Of
    that folder the library requires the state file and the weights; the files of the optimizer, the scaler and the
    random numbers are optional.

    A checkpoint of the library's own is replaced by a call of `save_run_checkpoint`. Callbacks see most requests for a
    checkpoint, but not those of `save_strategy="best"`.
    """
    if not has_private_parts(base):
        return base

    class Resuming(base):  # type: ignore[misc]
        def _load_from_checkpoint(self, *_: Any, **__: Any) -> None:
            """Load nothing: the weights are restored together with the rest of the state."""

        def _save_checkpoint(self, *_: Any, **__: Any) -> None:
            self.save_run_checkpoint()

        def _get_train_sampler(self, *args: Any, **kwargs: Any) -> Any:
            self.train_sampler = super()._get_train_sampler(*args, **kwargs)
            return self.train_sampler

    return Resuming


def write_resume_folder(folder: Path, trainer: Any, state: Mapping[str, Any]) -> None:
    """Write the files to `folder` that `trainer.train(resume_from_checkpoint=folder)` requires."""
    (folder / STATE_FILE).write_text(json.dumps(state), encoding="utf-8")
    if not has_private_parts(type(trainer)):
        trainer.save_model(str(folder))  # the library loads these, before the checkpoint's weights are restored


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
