"""Light checkpoints: a model's weights alone, in the one file the ecosystem loads."""

import json
import os
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import nn

from shoestring.checkpoint.files import sync
from shoestring.errors import CheckpointError

WEIGHTS = "model.safetensors"


def save_light(folder: Path, model: nn.Module, facts: dict[str, Any]) -> Path:
    """Replace the weights in `folder` by the model's, at once; `facts` (JSON) stand in the file's metadata.

    Raises CheckpointError when the file cannot be written; the old one is untouched then.
    """
    beside = folder / f".{WEIGHTS}.{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        safetensors.torch.save_model(model, str(beside), metadata={"format": "pt", "shoestring": json.dumps(facts)})
        sync(beside)
        beside.replace(folder / WEIGHTS)
        sync(folder)
    except (OSError, safetensors.SafetensorError) as error:
        beside.unlink(missing_ok=True)
        raise CheckpointError(f"weights could not be written to {folder}: {error}", hint="free space there") from error
    return folder / WEIGHTS


def load_light(folder: Path, model: nn.Module) -> dict[str, Any]:
    """Load the weights in `folder` into `model`; returns the facts they were saved with.

    Raises CheckpointError when there are none, or they are damaged or another model's.
    """
    path = folder / WEIGHTS
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            facts = json.loads((file.metadata() or {}).get("shoestring", "{}"))
        safetensors.torch.load_model(model, path, strict=True)
    except (OSError, ValueError, RuntimeError, safetensors.SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be loaded: {error}") from error
    return dict(facts)
