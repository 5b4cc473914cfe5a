"""Connecting the processes of a run, which a launcher or the agent has started, into torch's process group."""

from __future__ import annotations

import os
from functools import cache

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from shoestring.base.errors import RunError
from shoestring.training.engine.parallel.ranks import TIMEOUT


def join(device: torch.device) -> torch.device:
    """Join the other processes that a launcher has started, and return the device of this one.

    Each process has a GPU of its own; if there are more processes than GPUs, they share them, and exchange over gloo.

    Raises RunError if the processes cannot connect.
    """
    backend = "gloo"
    if device.type == "cuda":
        local_rank, gpus = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
        device = torch.device("cuda", local_rank % gpus)
        torch.cuda.set_device(device)
        if int(os.environ.get("LOCAL_WORLD_SIZE") or os.environ["WORLD_SIZE"]) <= gpus:
            backend = "cpu:gloo,cuda:nccl"
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    try:
        dist.init_process_group(backend, store=open_store(rank, size), rank=rank, world_size=size, timeout=TIMEOUT)
    except (RuntimeError, ValueError) as error:
        raise RunError(
            f"the {size} processes of this run cannot connect to each other: {error}",
            hint="check MASTER_ADDR, MASTER_PORT and the firewall; GLOO_SOCKET_IFNAME names the network interface",
        ) from error
    return device


@cache
def open_store(rank: int, size: int) -> Store:
    """Return the launcher's store, of torch.distributed, with the keys of this start of the processes alone.

    Without torchrun the store is in the first process, as long as that one refers to it.

    torchrun uses one store for all starts of the processes of one machine, unless it has `--rdzv-backend c10d`. Of
    several machines, each may count the starts in its own way.
    """
    store, _, _ = next(iter(rendezvous("env://", rank, size, timeout=TIMEOUT)))
    starts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if os.environ.get("GROUP_WORLD_SIZE") == "1" else "0"
    return PrefixStore(f"start {starts}", store)
