"""The full training steps of `benchmarks/memory/train.py`, with what else of the measured loops takes time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.memory import train
from benchmarks.memory.cases import Case, Row
from benchmarks.time import adaptdl

from shoestring.errors import UsageError

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


@dataclass(frozen=True, kw_only=True)
class Loop:
    """What a row's loop did beside its step."""

    clip_norm: float | None = None
    frozen: int = 0
    """The first layers of the encoder that were not trained."""
    old: bool = False
    """Before fused attention and before optimizers of many tensors at once: NVIDIA's containers of 2020."""
    watched: bool = False
    """Whether AdaptDL watched the gradients, and whether it was alone."""
    alone: bool = True

    @classmethod
    def of(cls, row: Row) -> Loop:
        """From the row's notes and where it comes from."""
        notes = row["notes"]
        frozen = re.search(r"Freeze (\d+) encoder layers", notes)
        return cls(
            # The default of transformers' Trainer, `max_grad_norm`.
            clip_norm=1.0 if "Trainer" in notes else None,
            frozen=int(frozen[1]) if frozen else 0,
            old="NGC PyTorch 20." in notes,
            watched="petuum/adaptdl" in row["source"],
            alone=row["num_gpus"] == "1",
        )


class Measured:
    """The row's step, as its loop runs it."""

    def __init__(self, step: train.Step, loop: Loop) -> None:
        self._step, self._loop = step, loop
        self.clip_norm = loop.clip_norm
        self.effective_batch, self.epochs, self.seed = step.effective_batch, step.epochs, step.seed
        self.batch, self.loss, self.first_batches = step.batch, step.loss, step.first_batches

    def model(self) -> nn.Module:
        model: Any = self._step.model()
        if self._loop.old and hasattr(model, "set_attn_implementation"):
            model.set_attn_implementation("eager")
        for layer in _layers(model)[: self._loop.frozen]:
            layer.requires_grad_(False)
        made: nn.Module = model
        return made

    def optimizer(self, model: nn.Module) -> Optimizer:
        made = self._step.optimizer(model)
        if self._loop.watched:
            adaptdl.watch(model, made, alone=self._loop.alone)
        return made


def case(row: Row, configs: Path) -> Case:
    """The row's step and what surrounds it. Raises UsageError for what is not known."""
    if "nodes x" in row["notes"]:
        raise UsageError("several machines: nothing is known of the network between them")
    found, loop = train.case(row, configs), Loop.of(row)
    kernel: Any = {"optimizer_kernel": "for-loop"} if loop.old else {}
    return replace(
        found,
        recipe=lambda: Measured(_step(found), loop),
        same=(*found.same, loop),
        settings=found.settings.replace(**kernel),
    )


def _step(found: Case) -> train.Step:
    step = found.recipe()
    assert isinstance(step, train.Step)
    return step


def _layers(model: Any) -> Sequence[nn.Module]:
    from torch import nn

    lists = (module for module in model.modules() if isinstance(module, nn.ModuleList))
    return list(next(lists, nn.ModuleList()))
