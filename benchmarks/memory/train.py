"""Full training steps that others measured on Tesla T4s and P100s, as recipes.

A row names a model of `models.py`, a torchvision classification model with a size of images, or a Hub name with a
length of sequences: there an encoder has the head of extractive question answering, as the measured ones had, and a
decoder its own. `torch.compile`, which some rows used, is not followed: its memory is that of other operators.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from benchmarks.memory import xmem
from benchmarks.memory.cases import Case, Row, Rows, configuration, number

from shoestring.errors import UsageError
from shoestring.hardware.catalog import DEVICES
from shoestring.recipes.huggingface.configuration import read
from shoestring.settings import Precision, Settings

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

_GPUS = {"T4": "t4", "P100": "p100", "V100": "v100", "L4": "l4"}

_GPTS = {"gpt-86m": (12, 12, 768), "gpt-303m": (24, 16, 1024), "gpt-11m": (6, 6, 384)}
"""Layers, heads and width."""

Kind = Literal["sgd", "adam", "adamw", "adamw8bit", "adafactor", "rmsprop", "adagrad"]


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The optimizer, as the row's words say it."""

    kind: Kind
    momentum: float = 0.0
    foreach: bool | None = None

    @classmethod
    def read(cls, words: str) -> Wanted:
        """From `SGD m0.9`, `bnb AdamW8bit`, `torch AdamW lr3e-4 foreach=False`. Raises UsageError."""
        found = re.search(r"adamw8bit|adamw|adam|sgd|adafactor|rmsprop|adagrad", words.lower())
        if not found:
            raise UsageError(f"no optimizer is known in {words!r}")
        kind: Any = found[0]
        momentum = re.search(r"\bm(?:omentum)?=?(0?\.\d+)", words)
        foreach = False if "foreach=false" in words.lower() else None
        return cls(kind=kind, momentum=float(momentum[1]) if momentum else 0.0, foreach=foreach)

    def make(self, model: nn.Module) -> Optimizer:
        import torch

        from shoestring.techniques.eightbit import BlockwiseAdamW

        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if self.kind == "adamw8bit":
            return BlockwiseAdamW(trained)
        names = {name.lower(): name for name in ("SGD", "Adam", "AdamW", "Adafactor", "RMSprop", "Adagrad")}
        options: dict[str, Any] = {"momentum": self.momentum} if self.momentum else {}
        make: Any = getattr(torch.optim, names[self.kind])
        made: Optimizer = make(trained, lr=1e-3, foreach=self.foreach, **options)
        return made


@dataclass(kw_only=True)
class Step:
    """A model whose forward is its loss, and what it reads."""

    build: Callable[[], nn.Module]
    read: Callable[[int], Any]
    wanted: Wanted
    keeps_outputs: bool = False
    """Whether the loop still holds a step's outputs while it makes the next ones."""

    effective_batch = 8
    epochs = 1
    seed = 0

    def model(self) -> nn.Module:
        return self.build()

    def batch(self, size: int) -> Any:
        return self.read(size)

    def first_batches(self, _size: int) -> Mapping[float, float]:
        """All are of one shape."""
        return {}

    def optimizer(self, model: nn.Module) -> Optimizer:
        return self.wanted.make(model)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        outputs: Any = model(**batch) if isinstance(batch, dict) else model(*batch)
        if self.keeps_outputs:
            self._last = outputs
        loss: Tensor = getattr(outputs, "loss", outputs)
        return loss


def case(row: Row, configs: Path) -> Case:
    """The row's step. Raises UsageError for a GPU, a model or an optimizer that is not known."""
    gpus, precision = number(row, "num_gpus") or 1, row["precision"].lower()
    if row["gpu"] not in _GPUS:
        raise UsageError(f"no GPU {row['gpu']} is known")
    wanted = Wanted.read(row["optimizer"])
    shape = row["seq_len_or_image"]
    chosen: Precision = "fp16" if "fp16" in precision else "bf16" if "bf16" in precision else "fp32"
    return Case(
        recipe=lambda: _step(row["model"], shape, wanted, configs),
        same=(row["model"], shape, wanted),
        settings=Settings(
            micro_batch=int(row["micro_batch"]),
            precision=chosen,
            checkpointing="full" if row["checkpointing"] == "1" else "no",
        ),
        device=DEVICES[_GPUS[row["gpu"]]],
        gpus=gpus,
    )


ROWS = Rows(
    case=case,
    measured=lambda row: number(row, "allocated_bytes"),
    judged="allocated",
    group=lambda row: row["model"],
)


def _step(model: str, shape: str, wanted: Wanted, configs: Path) -> Step:
    from benchmarks.memory import models

    if model == "lstm-lm":
        return Step(build=models.WordLSTM, read=lambda size: _tokens(int(shape), size), wanted=wanted)
    if model == "resnet18-cifar":
        return Step(build=models.CifarResNet18, read=lambda size: _images(shape, size), wanted=wanted)
    if model in _GPTS:
        gpt = models.GPTShape(*_GPTS[model], positions=int(shape))
        return Step(build=lambda: models.GPT(gpt), read=lambda size: _tokens(size, int(shape)), wanted=wanted)
    if "x" in shape:
        classifier = _with_loss(xmem.torchvision_model(model))
        return Step(build=lambda: classifier, read=lambda size: _images(shape, size), wanted=wanted)
    return _hub(configuration(model, configs), int(shape), wanted)


def _hub(source: Path, length: int, wanted: Wanted) -> Step:
    import transformers

    settings = read(str(source))
    declared = " ".join(settings.architectures or ())
    answers = "MaskedLM" in declared or "QuestionAnswering" in declared
    auto = transformers.AutoModelForQuestionAnswering if answers else transformers.AutoModelForCausalLM
    if settings.is_encoder_decoder:
        auto = transformers.AutoModelForSeq2SeqLM

    def batch(size: int) -> dict[str, Tensor]:
        import torch

        tokens, places = torch.ones(size, length, dtype=torch.int64), torch.ones(size, dtype=torch.int64)
        labels = {"start_positions": places, "end_positions": places} if answers else {"labels": tokens}
        return {"input_ids": tokens, "attention_mask": tokens, **labels}

    return Step(build=lambda: auto.from_config(settings), read=batch, wanted=wanted, keeps_outputs=True)


def _tokens(*shape: int) -> tuple[Tensor, Tensor]:
    import torch

    return torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.int64)


def _images(shape: str, size: int) -> tuple[Tensor, Tensor]:
    import torch

    height, width = map(int, shape.split("x"))
    return torch.zeros(size, 3, height, width, device="meta"), torch.zeros(size, dtype=torch.int64)


def _with_loss(classifier: nn.Module) -> nn.Module:
    from torch import nn
    from torch.nn.functional import cross_entropy

    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.classifier = classifier

        def forward(self, images: Tensor, labels: Tensor) -> Tensor:
            return cross_entropy(self.classifier(images), labels)

    return WithLoss()
