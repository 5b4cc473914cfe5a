"""Data parallelism as PyTorch implements it, traced on one of several GPUs.

`ddp` and `zero1` keep whole weights on each GPU (`replicas.py`), `zero2` and `zero3` shard them (`fsdp.py`).
"""

from __future__ import annotations

from typing import Any

from torch import nn

from shoestring.settings import Settings
from shoestring.techniques import checkpointing
from shoestring.trace.fsdp import FsdpShards
from shoestring.trace.recorder import Recorder
from shoestring.trace.replicas import DividedStates, Replicas
from shoestring.trace.single_device import SingleDevice


def apply(recorder: Recorder, model: nn.Module, recipe: Any, settings: Settings, gpus: int) -> SingleDevice:
    """Apply the sharding setting to a model on the simulated device and return its hooks for one of `gpus`.

    Raises UsageError if FSDP2 does not support the model.
    """
    if gpus == 1:
        return SingleDevice(model)
    match settings.sharding:
        case "ddp":
            return Replicas(recorder, model)
        case "zero1":
            return DividedStates(recorder, model, gpus)
        case "zero2" | "zero3":
            blocks = checkpointing.blocks(model, recipe)
            return FsdpShards(recorder, model, blocks, gpus, reshard_after_forward=settings.sharding == "zero3")
