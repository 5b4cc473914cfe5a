"""Offload on the pretend device: which weights never come there to stay, and who makes the optimizer's step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from shoestring.errors import QuestionError
from shoestring.settings import Settings
from shoestring.techniques import checkpointing, offload
from shoestring.trace import pretend
from shoestring.trace.recorder import Recorder


def move(recorder: Recorder, model: nn.Module, recipe: Any, settings: Settings, gpus: int) -> None:
    """Put the model's weights on the pretend device, but those that `offload` keeps in host memory.

    Raises QuestionError where there are no blocks, or several GPUs, or torch cannot tell device and host apart.
    """
    if settings.offload != "no" and offload.HOST.type == pretend.DEVICE:
        raise QuestionError(f"offload={settings.offload}: torch {torch.__version__} has no device to pretend with")
    if settings.offload != "no" and gpus > 1:
        raise QuestionError(f"offload={settings.offload}: cannot be estimated on several GPUs yet")
    if settings.offload != "parameters":
        pretend.move(model)
        return
    blocks = checkpointing.blocks(model, recipe)
    if not blocks:
        raise QuestionError("offload=parameters: the model has no blocks", hint="offload=optimizer")
    at_home = {id(parameter) for block in blocks for parameter in block.parameters()}

    def place(tensor: Tensor) -> Tensor:
        if id(tensor) in at_home:
            return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=offload.HOST)
        return pretend.like(tensor)

    pretend.move(model, place)
    again = checkpointing.chosen(model, recipe, settings.checkpointing)
    offload.bring(blocks, pretend.DEVICE, again=again, arrived=lambda weight: recorder.label([weight], "weights"))


def stepping(optimizer: Optimizer, settings: Settings) -> Optimizer | offload.HostOptimizer:
    """The optimizer as it takes its steps."""
    return optimizer if settings.offload == "no" else offload.HostOptimizer(optimizer)
