"""The full training steps of `benchmarks/memory/train.py`, with other time-consuming parts of the measured loops."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.memory import train
from benchmarks.memory.cases import Case, Row
from benchmarks.time import adaptdl, gavel

from shoestring.base.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer


_FROZEN_LAYERS = 8
"""What the script of the row with frozen layers freezes, and the embeddings (`run_qa_b3_freeze.py` of
nikhildinesharora/BERT-FineTuning-SQuAD-CUDA at 7915de2). The README of the same commit says ten layers."""


@dataclass(frozen=True, kw_only=True)
class Loop:
    """The operations of a row's loop beside its step."""

    clip_norm: float | None = None
    frozen: int = 0
    """The number of first encoder layers that were not trained, and with them the embeddings."""
    weight_decay: float | None = None
    """The weight decay of SGD, which the rows do not name; None: that of the step."""
    momentum: float | None = None
    """The momentum of SGD; None: that of the step."""
    monitored: bool = False
    """Whether AdaptDL monitored the gradients."""
    single_process: bool = True
    autotuned: bool = False
    """Whether `torch.backends.cudnn.benchmark` was on."""
    collates: bool = False
    """Whether Gavel's loader makes the batch on the GPU."""

    @classmethod
    def from_row(cls, row: Row) -> Loop:
        """Read the operations from the notes and the source of a row."""
        notes, model = row["notes"], row["model"]
        frozen = re.search(r"Freeze \d+ encoder layers", notes)
        is_gavel, is_adaptdl = (name in row["source"] for name in ("stanford-futuredata/gavel", "petuum/adaptdl"))
        is_lstm = is_gavel and model == "lstm-lm"
        # The default of transformers' Trainer is `max_grad_norm`.
        clip_norm = 1.0 if "Trainer" in notes else gavel.CLIP_NORM if is_lstm else None
        return cls(
            clip_norm=clip_norm,
            frozen=_FROZEN_LAYERS if frozen else 0,
            # Both train CIFAR-10 with SGD(momentum=0.9, weight_decay=5e-4).
            weight_decay=5e-4 if (is_gavel or is_adaptdl) and model == "resnet18-cifar" else None,
            momentum=0.9 if is_gavel and model == "resnet18-cifar" else None,
            monitored=is_adaptdl,
            single_process=row["num_gpus"] == "1",
            # Gavel's copy of the ImageNet example turns it on, that of CIFAR-10 does not.
            autotuned="cudnn.benchmark" in notes or (is_gavel and model == "resnet50"),
            collates=is_lstm,
        )


class LoopStep:
    """The step of a row with the operations of its loop."""

    def __init__(self, step: train.Step, loop: Loop) -> None:
        self._step, self._loop = step, loop
        self.clip_norm = loop.clip_norm
        self.effective_batch, self.epochs, self.seed = step.effective_batch, step.epochs, step.seed
        self.batch, self.first_batches = step.batch, step.first_batches

    def model(self) -> nn.Module:
        model: Any = self._step.model()
        if self._loop.frozen:
            for module in (*_embeddings(model), *_layers(model)[: self._loop.frozen]):
                module.requires_grad_(False)
        result: nn.Module = model
        return result

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        if self._loop.collates:
            batch = tuple(gavel.collate(columns) for columns in batch)
        return self._step.loss(model, batch)

    def optimizer(self, model: nn.Module) -> Optimizer:
        optimizer = self._step.optimizer(model)
        for name, value in (("weight_decay", self._loop.weight_decay), ("momentum", self._loop.momentum)):
            if value is not None:
                for group in optimizer.param_groups:
                    group[name] = value
        if self._loop.monitored:
            adaptdl.monitor(model, optimizer, single_process=self._loop.single_process)
        return optimizer


def case(row: Row, configs: Path) -> Case:
    """Build the case of a row with its loop. Raises UsageError for unknown properties."""
    if "nodes x" in row["notes"]:
        raise UsageError("several machines: nothing is known of the network between them")
    step_case, loop = train.case(row, configs), Loop.from_row(row)
    return replace(
        step_case,
        recipe=lambda: LoopStep(_build_step(step_case), loop),
        same=(*step_case.same, loop),
        settings=step_case.settings.replace(cudnn_benchmark=loop.autotuned),
    )


def _build_step(step_case: Case) -> train.Step:
    step = step_case.recipe()
    assert isinstance(step, train.Step)
    return step


def _embeddings(model: Any) -> Sequence[nn.Module]:
    return [module for name, module in model.named_modules() if name.rpartition(".")[2] == "embeddings"]


def _layers(model: Any) -> Sequence[nn.Module]:
    from torch import nn

    lists = (module for module in model.modules() if isinstance(module, nn.ModuleList))
    return list(next(lists, nn.ModuleList()))
