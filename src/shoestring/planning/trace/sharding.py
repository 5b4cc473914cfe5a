"""Data parallelism, traced on one of several GPUs.

`ddp` and `zero1` keep whole weights on each GPU (`replicas.py`), `zero2` and `zero3` shard them (`fsdp.py`). Loops of
one's own use DistributedDataParallel (`distributed.py`).
"""

from __future__ import annotations

from torch import nn

from shoestring.base.settings import Settings
from shoestring.planning.trace.distributed import DistributedReplicas
from shoestring.planning.trace.fsdp import FsdpShards
from shoestring.planning.trace.recorder import Recorder
from shoestring.planning.trace.replicas import DividedStates, Replicas
from shoestring.planning.trace.single_device import SingleDevice


def traced_shards(settings: Settings, gpus: int, *, torch_ddp: bool) -> int:
    """Return how many logical shards of a GPU are traced.

    More than eight need the memory of eight, but for one sum of gradients that is pending each time they double.
    """
    if torch_ddp or (gpus > 1 and settings.sharding in ("zero2", "zero3")):
        return 1
    return min(8, (settings.logical_shards or gpus) // gpus)


def apply(
    recorder: Recorder, model: nn.Module, blocks: list[nn.Module], settings: Settings, gpus: int, *, torch_ddp: bool
) -> SingleDevice:
    """Apply the sharding setting to a model on the simulated device and return its hooks for one of `gpus`.

    `blocks` are its modules that are sharded one by one (`techniques/checkpointing.py`).

    Raises UsageError if FSDP2 does not support the model.
    """
    shards = traced_shards(settings, gpus, torch_ddp=torch_ddp)
    if gpus == 1:
        return Replicas(recorder, model, gpus, shards) if shards > 1 else SingleDevice(model)
    match settings.sharding:
        case "ddp" | None if torch_ddp:
            return DistributedReplicas(recorder, model)
        case "ddp" | None:
            return Replicas(recorder, model, gpus, shards)
        case "zero1":
            return DividedStates(recorder, model, gpus, shards)
        case "zero2" | "zero3":
            return FsdpShards(
                recorder,
                model,
                blocks,
                gpus,
                reshard_after_forward=settings.sharding == "zero3",
                on_host=settings.offload == "parameters",
            )
