"""LoRA and QLoRA steps that others measured on Tesla T4s, as recipes.

One warm-up step and one measured step on random tokens of one length, without autocast or clipping; the base model in
fp16, or in NF4 through `prepare_model_for_kbit_training` of peft; AdamW on fp32 adapters.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from benchmarks.memory.cases import Case, Row, Rows, configuration, number

from shoestring.base.settings import Settings
from shoestring.hardware.catalog import DEVICES
from shoestring.integrations.huggingface import HuggingFace, Options
from shoestring.recipe.adaptation import Adaptation
from shoestring.techniques import adapt

if TYPE_CHECKING:
    from torch import Tensor, nn


class OutputsRetained(HuggingFace):
    """A recipe that keeps the model's outputs, including logits, until the end of the step, as in the measured loop."""

    adaptation: ClassVar[Adaptation]

    def model(self) -> nn.Module:
        return adapt.model(super().model(), self.adaptation)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        self._outputs: Any = None
        self._outputs = model(**batch)
        loss: Tensor = self._outputs.loss
        return loss

    def first_batches(self, _size: int) -> Mapping[float, float]:
        """Return nothing, because all batches have one length."""
        return {}


def case(row: Row, configs: Path) -> Case:
    """Build the case of a row. Raises UsageError."""
    source = configuration(row["model"], configs)
    size = int(row["micro_batch"])
    options = Options(
        seq_len=int(row["seq_len"]),
        attention="eager" if row["attention"] == "eager" else "sdpa",
        effective_batch=size,
    )
    adaptation = Adaptation(
        lora_r=int(row["lora_r"]),
        lora_alpha=int(row["lora_alpha"]),
        quantization="nf4" if row["quantization"] == "nf4" else "none",
        weights="fp16",
    )
    kind = type("OutputsRetained", (OutputsRetained,), {"source": str(source), "adaptation": adaptation})
    return Case(
        recipe=lambda: kind(options),
        same=(source, options, adaptation),
        settings=Settings(
            micro_batch=size, precision="fp32", checkpointing="full" if row["checkpointing"] == "1" else "no"
        ),
        device=DEVICES["t4"],
        # Unquantized models were loaded in host memory and then moved, as by the engine.
        loading="transformers" if adaptation.quantization == "nf4" else "engine",
    )


ROWS = Rows(
    case=case,
    measured=lambda row: number(row, "allocated_bytes"),
    quantity="allocated",
    group=lambda row: f"{row['quantization']} {row['attention']}",
)
