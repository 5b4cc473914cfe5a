"""What training on several GPUs holds on one of them: PyTorch's own ways of data parallelism.

`ddp` and `zero1` keep whole weights on each GPU (`replicas.py`), `zero2` and `zero3` divide them (`shards.py`).
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


def share(recorder: Recorder, model: nn.Module, recipe: Any, settings: Settings, gpus: int) -> SingleDevice:
    """How this model, whose weights are on the pretend device, is trained on one of `gpus`.

    Raises UsageError where FSDP2 does not take the model.
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
