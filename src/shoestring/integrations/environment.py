"""The facts that must not change for a library's trainer to continue a run with the same bits."""

from __future__ import annotations

import importlib.metadata
import platform
from typing import Any

import torch

from shoestring.training.engine.environment import device_name
from shoestring.training.processes.one_process import Processes

_LIBRARIES = ("transformers", "accelerate", "peft", "trl")


def library_versions() -> dict[str, str | None]:
    """Return the versions of the libraries that affect a trainer's bits; None for one that is not installed."""
    return {library: _version(library) for library in _LIBRARIES}


def processes_fact(processes: Processes) -> dict[str, int | None]:
    """Return the number of processes among which a library divides an update, as a part of the environment."""
    # None for one process, as in a checkpoint of an earlier version.
    return {"processes": processes.count if processes.count > 1 else None}


def script_environment(trainer: Any) -> dict[str, Any]:
    """Return the facts that must not change for a resumed run of a script to end with the same bits."""
    args, device = trainer.args, trainer.args.device
    facts = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": device_name(device),
        "trainer": type(trainer).__name__,
        "micro_batch": args.per_device_train_batch_size,
        "accumulation": args.gradient_accumulation_steps,
        "precision": precision_of(args),
        "seed": args.seed,
    }
    if device.type == "cpu":
        facts["threads"] = torch.get_num_threads()
        facts["instructions"] = torch.backends.cpu.get_cpu_capability()
    return facts


def precision_of(args: Any) -> Any:
    """Return the precision that a trainer's arguments request."""
    return "fp16" if args.fp16 else "bf16" if args.bf16 else "fp32"


def _version(library: str) -> str | None:
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return None
