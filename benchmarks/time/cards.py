"""Training steps that others measured on an A10, a V100 and GeForce cards, as recipes.

`TIMM` rows are steps of pytorch-image-models' `benchmark.py`: autocast in fp16, `cudnn.benchmark`, PyTorch 1.12. `LAM`
rows are steps of NVIDIA's DeepLearningExamples, from the logs of lambdal/deeplearning-benchmark: ResNet-50, and BERT
for extractive question answering with attention operator by operator. In their containers fp32 is TF32 on Ampere and
newer. Their fp16 of BERT has weights in fp16 and no autocast.

timm and torchvision are not dependencies of the project; they may be installed in a separate folder.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.memory import xmem
from benchmarks.memory.cases import Case, Row, Rows, number
from benchmarks.memory.train import OptimizerSpec, Step, add_loss

from shoestring.base.errors import UsageError
from shoestring.base.settings import MemoryFormat, Precision, Settings
from shoestring.hardware.catalog import DEVICES

if TYPE_CHECKING:
    from torch import Tensor, nn

_GPUS = {"RTX 3090": "rtx3090", "RTX 4090": "rtx4090", "A10": "a10", "V100-SXM2-16GB": "v100"}

_BERT_LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}


def case(row: Row, _configs: Path) -> Case:
    """Build the case of a row. Raises UsageError for an unknown GPU or model."""
    if row["gpu"] not in _GPUS:
        raise UsageError(f"unknown GPU {row['gpu']}")
    device = DEVICES[_GPUS[row["gpu"]]]
    is_half, is_bert = _kind(row) == "fp16", row["model"].startswith("bert")
    precision: Precision = "fp16" if is_half and not is_bert else "fp32"
    memory_format: MemoryFormat = "channels_last" if "channels_last" in row["seq_len_or_image"] else "contiguous"
    is_timm = row["id"].startswith("TIMM-")
    return Case(
        recipe=lambda: _step(row["model"], is_half),
        same=(row["model"], is_half and is_bert),
        settings=Settings(
            micro_batch=int(row["micro_batch"]),
            precision=precision,
            checkpointing="no",
            # PyTorch 1.12 and 1.13 update one tensor at a time by default.
            optimizer_kernel="fused" if is_bert else "for-loop",
            memory_format=memory_format,
            cudnn_benchmark=is_timm or "resnet50" in row["model"],
            tf32=not is_half and device.tf32_flops is not None,
        ),
        device=device,
        gpus=number(row, "num_gpus") or 1,
    )


def measured(row: Row) -> float | None:
    """Return the seconds of a step, or None if they were not measured."""
    text = row.get("seconds_per_step") or ""
    return float(text) if text else None


ROWS = Rows(
    case=case,
    measured=measured,
    quantity="seconds",
    group=lambda row: f"{row['gpu']} {row['id'].partition('-')[0]} {_kind(row)}",
)


def _kind(row: Row) -> str:
    return "fp32" if row["precision"].lower().startswith("fp32") else "fp16"


def _step(model: str, is_half: bool) -> Step:
    if model.startswith("bert"):
        return _bert_step(model, is_half)
    name = model.removeprefix("timm ").partition(" ")[0]
    return Step(
        build_model=lambda: add_loss(timm_model(name)),
        build_batch=_image_batch,
        optimizer_spec=OptimizerSpec(kind="sgd", momentum=0.9),
    )


def _image_batch(size: int) -> tuple[Tensor, Tensor]:
    import torch

    return torch.zeros(size, 3, 224, 224, device="meta"), torch.zeros(size, dtype=torch.int64)


def _bert_step(name: str, is_half: bool) -> Step:
    """Return the step of `run_squad.py`: 384 tokens, attention operator by operator, and an optimizer in one kernel."""
    import transformers

    length = 384

    def model() -> nn.Module:
        config: Any = transformers.BertConfig(**(_BERT_LARGE if "large" in name else {}))
        config._attn_implementation = "eager"
        built: nn.Module = transformers.BertForQuestionAnswering(config)
        return built.half() if is_half else built

    def batch(size: int) -> dict[str, Tensor]:
        import torch

        tokens, positions = torch.ones(size, length, dtype=torch.int64), torch.ones(size, dtype=torch.int64)
        return {
            "input_ids": tokens,
            "attention_mask": tokens,
            "start_positions": positions,
            "end_positions": positions,
        }

    return Step(build_model=model, build_batch=batch, optimizer_spec=OptimizerSpec(kind="adamw"), keeps_outputs=True)


def timm_model(name: str) -> nn.Module:
    """Build a model of timm with random weights, without fused attention, which its version of 2022 had not.

    Raises UsageError if timm is not installed.
    """
    folder = os.environ.get("SHOESTRING_TIMM")
    if folder:
        os.environ.setdefault("SHOESTRING_TORCHVISION", folder)
    xmem.import_torchvision()
    if folder:
        sys.path.insert(0, folder)
    try:
        import timm
        import timm.layers
    except ImportError as error:
        raise UsageError(
            f"needs timm ({error}): set SHOESTRING_TIMM=DIR after pip install --no-deps --target DIR timm torchvision"
        ) from None
    finally:
        if folder:
            sys.path.remove(folder)
    timm.layers.set_fused_attn(False)
    model: nn.Module = timm.create_model(name, pretrained=False)
    return model
