"""Full training steps that others measured on Tesla T4s and P100s, as recipes.

A row names a model of `models.py`, a torchvision classification model with an image size, or a Hub name with a sequence
length. Hub encoders have a head for extractive question answering, as in the measurements, and decoders their own head.
`torch.compile`, which some rows used, is not traced: it runs other operators with other memory. On several GPUs the
column `sharding` is `ddp`, or empty in older files: torch's DistributedDataParallel; or `zero3`: FSDP2 per block.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from benchmarks.memory import legacy, xmem
from benchmarks.memory.cases import Case, Row, Rows, configuration, number

from shoestring.base.errors import UsageError
from shoestring.base.settings import Precision, Settings
from shoestring.hardware.catalog import DEVICES
from shoestring.integrations.huggingface.configuration import read

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

_GPUS = {"T4": "t4", "P100": "p100", "V100": "v100", "L4": "l4"}

_GPTS = {"gpt-86m": (12, 12, 768), "gpt-303m": (24, 16, 1024), "gpt-11m": (6, 6, 384)}
"""Layers, heads and width."""

Kind = Literal["sgd", "adam", "adamw", "adamw8bit", "adafactor", "rmsprop", "adagrad"]


@dataclass(frozen=True, kw_only=True)
class OptimizerSpec:
    """The optimizer that a row describes."""

    kind: Kind
    momentum: float = 0.0
    foreach: bool | None = None

    @classmethod
    def parse(cls, text: str) -> OptimizerSpec:
        """Parse `SGD m0.9`, `bnb AdamW8bit`, `torch AdamW lr3e-4 foreach=False`. Raises UsageError."""
        match = re.search(r"adamw8bit|adamw|adam|sgd|adafactor|rmsprop|adagrad", text.lower())
        if not match:
            raise UsageError(f"no known optimizer in {text!r}")
        kind: Any = match[0]
        momentum = re.search(r"\bm(?:omentum)?=?(0?\.\d+)", text)
        foreach = False if "foreach=false" in text.lower() else None
        return cls(kind=kind, momentum=float(momentum[1]) if momentum else 0.0, foreach=foreach)

    def build(self, model: nn.Module) -> Optimizer:
        import torch

        from shoestring.techniques.eightbit import BlockwiseAdamW

        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if self.kind == "adamw8bit":
            return BlockwiseAdamW(parameters)
        names = {name.lower(): name for name in ("SGD", "Adam", "AdamW", "Adafactor", "RMSprop", "Adagrad")}
        options: dict[str, Any] = {"momentum": self.momentum} if self.momentum else {}
        optimizer_class: Any = getattr(torch.optim, names[self.kind])
        optimizer: Optimizer = optimizer_class(parameters, lr=1e-3, foreach=self.foreach, **options)
        return optimizer


@dataclass(kw_only=True)
class Step:
    """A model whose forward returns its loss, with its batches and its optimizer."""

    build_model: Callable[[], nn.Module]
    build_batch: Callable[[int], Any]
    optimizer_spec: OptimizerSpec
    keeps_outputs: bool = False
    """Whether the outputs of a step stay alive during the next forward."""
    legacy: bool = False
    """Whether it was measured with a version of PyTorch before 1.11."""

    effective_batch = 8
    epochs = 1
    seed = 0

    def model(self) -> nn.Module:
        model = self.build_model()
        if self.legacy:
            legacy.use_attention(model)
        return model

    def batch(self, size: int) -> Any:
        return self.build_batch(size)

    def first_batches(self, _size: int) -> Mapping[float, float]:
        """Return nothing, because all batches have one shape."""
        return {}

    def optimizer(self, model: nn.Module) -> Optimizer:
        optimizer = self.optimizer_spec.build(model)
        if self.legacy:
            legacy.keep_gradients(model, optimizer)
        return optimizer

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        outputs: Any = model(**batch) if isinstance(batch, dict) else model(*batch)
        if self.keeps_outputs:
            self._last_outputs = outputs
        loss: Tensor = getattr(outputs, "loss", outputs)
        return loss


def case(row: Row, configs: Path) -> Case:
    """Build the case of a row. Raises UsageError for an unknown GPU, sharding, model or optimizer."""
    gpus, precision_text = number(row, "num_gpus") or 1, row["precision"].lower()
    if row["gpu"] not in _GPUS:
        raise UsageError(f"unknown GPU {row['gpu']}")
    sharding = row.get("sharding") or None
    if sharding not in (None, "ddp", "zero3"):
        raise UsageError(f"unknown sharding {sharding}")
    optimizer_spec = OptimizerSpec.parse(row["optimizer"])
    shape = row["seq_len_or_image"]
    is_legacy = legacy.is_legacy(row)
    precision: Precision = "fp16" if "fp16" in precision_text else "bf16" if "bf16" in precision_text else "fp32"
    return Case(
        recipe=lambda: replace(_build_step(row["model"], shape, optimizer_spec, configs), legacy=is_legacy),
        same=(row["model"], shape, optimizer_spec, is_legacy),
        settings=Settings(
            micro_batch=int(row["micro_batch"]),
            precision=precision,
            checkpointing="full" if row["checkpointing"] == "1" else "no",
            sharding=sharding,
            optimizer_kernel="for-loop" if is_legacy else None,
        ),
        device=DEVICES[_GPUS[row["gpu"]]],
        gpus=gpus,
    )


ROWS = Rows(
    case=case,
    measured=lambda row: number(row, "allocated_bytes"),
    quantity="allocated",
    group=lambda row: row["model"],
)


def _build_step(model: str, shape: str, optimizer_spec: OptimizerSpec, configs: Path) -> Step:
    from benchmarks.memory import models

    if model == "lstm-lm":
        return Step(
            build_model=models.WordLSTM,
            build_batch=lambda size: _token_batch(int(shape), size),
            optimizer_spec=optimizer_spec,
        )
    if model == "resnet18-cifar":
        return Step(
            build_model=models.CifarResNet18,
            build_batch=lambda size: _image_batch(shape, size),
            optimizer_spec=optimizer_spec,
        )
    if model in _GPTS:
        gpt = models.GPTShape(*_GPTS[model], positions=int(shape))
        return Step(
            build_model=lambda: models.GPT(gpt),
            build_batch=lambda size: _token_batch(size, int(shape)),
            optimizer_spec=optimizer_spec,
        )
    if "x" in shape:
        classifier = add_loss(xmem.torchvision_model(model))
        return Step(
            build_model=lambda: classifier,
            build_batch=lambda size: _image_batch(shape, size),
            optimizer_spec=optimizer_spec,
        )
    return _build_hub_step(configuration(model, configs), int(shape), optimizer_spec)


def _build_hub_step(source: Path, length: int, optimizer_spec: OptimizerSpec) -> Step:
    import transformers

    settings = read(str(source))
    architectures = " ".join(settings.architectures or ())
    has_answer_head = "MaskedLM" in architectures or "QuestionAnswering" in architectures
    auto = transformers.AutoModelForQuestionAnswering if has_answer_head else transformers.AutoModelForCausalLM
    if settings.is_encoder_decoder:
        auto = transformers.AutoModelForSeq2SeqLM

    def batch(size: int) -> dict[str, Tensor]:
        import torch

        tokens, positions = torch.ones(size, length, dtype=torch.int64), torch.ones(size, dtype=torch.int64)
        labels = {"start_positions": positions, "end_positions": positions} if has_answer_head else {"labels": tokens}
        return {"input_ids": tokens, "attention_mask": tokens, **labels}

    return Step(
        build_model=lambda: auto.from_config(settings),
        build_batch=batch,
        optimizer_spec=optimizer_spec,
        keeps_outputs=True,
    )


def _token_batch(*shape: int) -> tuple[Tensor, Tensor]:
    import torch

    return torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.int64)


def _image_batch(shape: str, size: int) -> tuple[Tensor, Tensor]:
    import torch

    height, width = map(int, shape.split("x"))
    return torch.zeros(size, 3, height, width, device="meta"), torch.zeros(size, dtype=torch.int64)


def add_loss(classifier: nn.Module) -> nn.Module:
    from torch import nn
    from torch.nn.functional import cross_entropy

    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.classifier = classifier

        def forward(self, images: Tensor, labels: Tensor) -> Tensor:
            return cross_entropy(self.classifier(images), labels)

    return WithLoss()
