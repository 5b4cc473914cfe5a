"""Offload on the simulated device: which weights stay in host memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from shoestring.base.settings import Settings
from shoestring.planning.trace import loading, simulated_device
from shoestring.planning.trace.recorder import Recorder
from shoestring.techniques import checkpointing, offload


def move(recorder: Recorder, model: nn.Module, recipe: Any, settings: Settings, *, from_host: bool = True) -> None:
    """Move the model's weights to the simulated device, except those that `offload` keeps in host memory.

    `from_host` is false if the device is a CPU.

    Raises UsageError if the model has no blocks.
    """
    if settings.offload != "parameters":
        loading.move_model(recorder, model, from_host=from_host)
        return
    blocks = checkpointing.blocks(model, recipe)
    host_parameters = {id(parameter) for parameter in offload.block_parameters_on_host(model, blocks)}

    def copy_to_its_device(tensor: Tensor) -> Tensor:
        if id(tensor) in host_parameters:
            return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=offload.HOST)
        return simulated_device.allocate_like(tensor)

    loading.move_model(recorder, model, copy_to_its_device)
    offload.copy_weights_on_use(
        blocks, simulated_device.DEVICE, on_copy=lambda weight: recorder.label([weight], "weights")
    )
