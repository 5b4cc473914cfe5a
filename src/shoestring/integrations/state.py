"""The state of a library's trainer, as checkpoints hold it and as the steps of training use it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from shoestring.checkpoint.fitting import misfits
from shoestring.checkpoint.trained import trained_state
from shoestring.engine.precision import MixedPrecision
from shoestring.engine.state import trains_batch_norm
from shoestring.errors import CheckpointError
from shoestring.recipe.parts import Parts
from shoestring.techniques import checkpointing
from shoestring.techniques.fallbacks import Limits, Sizes, least_micro_batch

if TYPE_CHECKING:
    from torch import nn

_SECTIONS = {"model", "optimizer", "scheduler", "scaler", "trainer"}


@dataclass(kw_only=True)
class LibraryState:
    """An `engine.state.State`: the trainer has the model, its optimizer and the number of updates."""

    trainer: Any
    mixed_precision: MixedPrecision
    """Of evaluations; the trainer has its own for updates."""
    sizes: Sizes
    build: Callable[[Sizes], Any] | None = None
    """Makes the trainer anew in other sizes; None in a script with a trainer of its own."""
    history: list[dict[str, Any]] = field(default_factory=list)
    restored: Mapping[str, Any] = field(default_factory=dict)
    """A checkpoint's sections, until the trainer has made the optimizer that they belong in."""

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
        return int(self._progress()["epoch"] or 0)

    @property
    def at_epoch_end(self) -> bool:
        return float(self._progress()["epoch"] or 0).is_integer()

    def _progress(self) -> Mapping[str, Any]:
        progress: Mapping[str, Any] = self.restored["trainer"] if self.restored else vars(self.trainer.state)
        return progress

    def pack(self) -> dict[str, Any]:
        """Trained weights, buffers, and everything that the trainer continues from."""
        trainer = self.trainer
        scaler = trainer.accelerator.scaler
        return {
            "model": trained_state(self.model),
            "optimizer": trainer.optimizer.state_dict(),
            "scheduler": trainer.lr_scheduler.state_dict(),
            "scaler": scaler.state_dict() if scaler else None,
            "fit": self.sizes.json(),
            "trainer": json.loads(json.dumps(dataclasses.asdict(trainer.state))),
            "history": self.history,
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Only keep the sections: `take_over` puts them in place once the trainer has made its optimizer.

        Raises CheckpointError for a checkpoint that is not of a trainer.
        """
        if missing := _SECTIONS - saved.keys():
            raise CheckpointError(f"the checkpoint is of no trainer: it has no {', '.join(sorted(missing))}")
        self.restored, self.history = saved, list(saved.get("history", []))
        self.sizes = self.sizes.resumed(saved.get("fit"))

    def take_over(self) -> None:
        """Bring model, optimizer, schedule and loss scale to what was restored, if anything was.

        Raises CheckpointError where they are of another model or optimizer.
        """
        if not self.restored:
            return
        trainer, saved = self.trainer, self.restored
        if problems := misfits(saved["model"], trained_state(self.model)):
            raise CheckpointError("the checkpoint is of another model", problems=problems[:20])
        self.model.load_state_dict(saved["model"], strict=False)
        try:
            # In memory of its own: a file's pages are not aligned as torch allocates, and vector code may round the
            # ends of an unaligned tensor differently.
            trainer.optimizer.load_state_dict(_cloned(saved["optimizer"]))
            trainer.lr_scheduler.load_state_dict(saved["scheduler"])
            if trainer.accelerator.scaler and saved["scaler"]:
                trainer.accelerator.scaler.load_state_dict(saved["scaler"])
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"the checkpoint cannot be restored: {type(error).__name__}: {error}") from error
        self.restored = {}

    def limits(self) -> Limits:
        return Limits(
            least_micro_batch=least_micro_batch(batch_norm=trains_batch_norm(self.model)),
            blocks=len(checkpointing.blocks(self.model, Parts())),
        )

    def release(self) -> None:
        """The trainer, which `resize` makes anew."""
        self.trainer = None

    def resize(self, sizes: Sizes) -> None:
        assert self.build is not None
        self.sizes = sizes
        self.trainer = self.build(sizes)


def _cloned(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {key: _cloned(item) for key, item in value.items()}
    return [_cloned(item) for item in value] if isinstance(value, list) else value
