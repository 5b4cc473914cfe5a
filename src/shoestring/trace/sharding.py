"""What training on several GPUs holds on one of them: PyTorch's own ways of data parallelism.

`ddp` and `zero1` keep whole weights on each GPU (`replicas.py`), `zero2` and `zero3` divide them (`shards.py`).
"""

from __future__ import annotations

from typing import Any

from torch import nn

from shoestring.settings import Settings
from shoestring.techniques import checkpointing
from shoestring.trace.alone import Alone
from shoestring.trace.recorder import Recorder
from shoestring.trace.replicas import DividedStates, Replicas
from shoestring.trace.shards import Shards


def share(recorder: Recorder, model: nn.Module, recipe: Any, settings: Settings, gpus: int) -> Alone:
    """How this model, whose weights are on the pretend device, is trained on one of `gpus`.

    Raises UsageError where FSDP2 does not take the model.
    """
    if gpus == 1:
        return Alone(model)
    match settings.sharding:
        case "ddp":
            return Replicas(recorder, model)
        case "zero1":
            return DividedStates(recorder, model, gpus)
        case "zero2" | "zero3":
            blocks = checkpointing.blocks(model, recipe)
            return Shards(recorder, model, blocks, gpus, reshard_after_forward=settings.sharding == "zero3")
