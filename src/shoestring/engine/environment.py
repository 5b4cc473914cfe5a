"""What the bits of a run depend on besides its recipe: versions, machine, settings."""

import hashlib
import json
import platform
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shoestring.checkpoint.files import sha256
from shoestring.errors import UsageError
from shoestring.recipe.options import LoadedRecipe
from shoestring.settings import Settings
from shoestring.techniques import compiled


def environment(settings: Settings, device: torch.device, loaded: LoadedRecipe) -> dict[str, Any]:
    """Everything that, changed, lets a resumed run end in other bits."""
    facts: dict[str, Any] = {
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "device": device_name(device),
        "micro_batch": settings.micro_batch,
        "precision": settings.precision,
        # What is not there is as it always was, so that older states are still known.
        "checkpointing": None if settings.checkpointing == "no" else settings.checkpointing,
        "optimizer_kernel": settings.optimizer_kernel,
        "offload": None if settings.offload == "no" else settings.offload,
        "compile": None if settings.compile == "no" else settings.compile,
        "compiler": compiled.toolchain(settings, device),
        "cudnn_benchmark": settings.cudnn_benchmark or None,
        "recipe file": loaded.digest[:16],
        **{f"content of {name}": content(path)[:16] for name, path in loaded.paths.items()},
    }
    if loaded.adaptation.quantization != "none" or loaded.adaptation.optimizer_states != "own":
        facts["bitsandbytes"] = version("bitsandbytes") if find_spec("bitsandbytes") else None
    if device.type == "cpu":
        # A sum is split among threads and vector lanes, so both decide its rounding.
        facts["threads"] = torch.get_num_threads()
        facts["instructions"] = torch.backends.cpu.get_cpu_capability()
    return facts


def content(path: Path) -> str:
    """The SHA-256 of a file, or of a directory's file names and sizes: reading all of a large data set takes long."""
    if path.is_file():
        return sha256(path)
    names = sorted((str(file.relative_to(path)), file.stat().st_size) for file in path.rglob("*") if file.is_file())
    return hashlib.sha256(json.dumps(names).encode()).hexdigest()


def device_name(device: torch.device) -> str:
    """The name of the hardware: `cpu`, or `cuda: Tesla T4`."""
    return f"cuda: {torch.cuda.get_device_name(device)}" if device.type == "cuda" else device.type


def differences(saved: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What differs between where a checkpoint was saved and here, in words."""
    return [
        f"{name}: saved under {saved.get(name)}, here {now.get(name)}"
        for name in sorted(saved.keys() | now.keys())
        if saved.get(name) != now.get(name)
    ]


def require_same(saved: dict[str, Any], now: dict[str, Any], *, allow_inexact: bool) -> list[str]:
    """The differences, which must be none unless they are allowed.

    Raises UsageError naming every one of them otherwise.
    """
    found = differences(saved, now)
    if found and not allow_inexact:
        raise UsageError(
            "the run would not continue bit for bit",
            problems=found,
            hint="restore what differs, or add --allow-inexact: same samples and schedule, other rounding",
        )
    return found
