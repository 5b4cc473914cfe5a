"""The full training steps of `benchmarks/memory/train.py`, with other time-consuming parts of the measured loops."""

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
    """The operations of a row's loop beside its step."""

    clip_norm: float | None = None
    frozen: int = 0
    """The number of first encoder layers that were not trained."""
    legacy: bool = False
    """Whether the software predates fused attention and multi-tensor optimizers: NVIDIA's containers of 2020."""
    monitored: bool = False
    """Whether AdaptDL monitored the gradients."""
    single_process: bool = True

    @classmethod
    def from_row(cls, row: Row) -> Loop:
        """Read the operations from the notes and the source of a row."""
        notes = row["notes"]
        frozen = re.search(r"Freeze (\d+) encoder layers", notes)
        return cls(
            # The default of transformers' Trainer, `max_grad_norm`.
            clip_norm=1.0 if "Trainer" in notes else None,
            frozen=int(frozen[1]) if frozen else 0,
            legacy="NGC PyTorch 20." in notes,
            monitored="petuum/adaptdl" in row["source"],
            single_process=row["num_gpus"] == "1",
        )


class LoopStep:
    """The step of a row with the operations of its loop."""

    def __init__(self, step: train.Step, loop: Loop) -> None:
        self._step, self._loop = step, loop
        self.clip_norm = loop.clip_norm
        self.effective_batch, self.epochs, self.seed = step.effective_batch, step.epochs, step.seed
        self.batch, self.loss, self.first_batches = step.batch, step.loss, step.first_batches

    def model(self) -> nn.Module:
        model: Any = self._step.model()
        if self._loop.legacy and hasattr(model, "set_attn_implementation"):
            model.set_attn_implementation("eager")
        for layer in _layers(model)[: self._loop.frozen]:
            layer.requires_grad_(False)
        result: nn.Module = model
        return result

    def optimizer(self, model: nn.Module) -> Optimizer:
        optimizer = self._step.optimizer(model)
        if self._loop.monitored:
            adaptdl.monitor(model, optimizer, single_process=self._loop.single_process)
        return optimizer


def case(row: Row, configs: Path) -> Case:
    """Build the case of a row with its loop. Raises UsageError for unknown properties."""
    if "nodes x" in row["notes"]:
        raise UsageError("several machines: nothing is known of the network between them")
    step_case, loop = train.case(row, configs), Loop.from_row(row)
    kernel: Any = {"optimizer_kernel": "for-loop"} if loop.legacy else {}
    return replace(
        step_case,
        recipe=lambda: LoopStep(_build_step(step_case), loop),
        same=(*step_case.same, loop),
        settings=step_case.settings.replace(**kernel),
    )


def _build_step(step_case: Case) -> train.Step:
    step = step_case.recipe()
    assert isinstance(step, train.Step)
    return step


def _layers(model: Any) -> Sequence[nn.Module]:
    from torch import nn

    lists = (module for module in model.modules() if isinstance(module, nn.ModuleList))
    return list(next(lists, nn.ModuleList()))
