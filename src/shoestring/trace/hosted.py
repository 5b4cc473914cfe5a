"""Offload on the pretend device: which weights never come there to stay."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from shoestring.errors import UsageError
from shoestring.settings import Settings
from shoestring.techniques import checkpointing, offload
from shoestring.trace import pretend
from shoestring.trace.recorder import Recorder


def move(recorder: Recorder, model: nn.Module, recipe: Any, settings: Settings, gpus: int) -> None:
    """Put the model's weights on the pretend device, but those that `offload` keeps in host memory.

    Raises UsageError where there are no blocks, or several GPUs, or torch cannot tell device and host apart.
    """
    if settings.offload != "no" and offload.HOST.type == pretend.DEVICE:
        raise UsageError(f"offload={settings.offload}: torch {torch.__version__} has no device to pretend with")
    if settings.offload != "no" and gpus > 1:
        raise UsageError(f"offload={settings.offload}: cannot be estimated on several GPUs yet")
    if settings.offload != "parameters":
        pretend.move(model)
        return
    blocks = checkpointing.blocks(model, recipe)
    at_home = {id(parameter) for parameter in offload.at_home(model, blocks)}

    def place(tensor: Tensor) -> Tensor:
        if id(tensor) in at_home:
            return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=offload.HOST)
        return pretend.like(tensor)

    pretend.move(model, place)
    offload.bring(blocks, pretend.DEVICE, arrived=lambda weight: recorder.label([weight], "weights"))
