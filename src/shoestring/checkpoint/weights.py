"""The weights of a full checkpoint without the rest of it: of its files only the model's is read, and what names it."""

import re
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import nn

from shoestring.checkpoint import codec
from shoestring.checkpoint.files import read_json
from shoestring.checkpoint.fitting import misfits
from shoestring.checkpoint.manifest import Damaged, verify
from shoestring.checkpoint.trained import trained_state
from shoestring.errors import CheckpointError

_NAME = re.compile(r"update-(\d{8,18})")
_MODEL, _STATE = "model.safetensors", "state.json"


def is_checkpoint(folder: Path) -> bool:
    """Whether a directory is called as a full checkpoint is."""
    return _NAME.fullmatch(folder.name) is not None


def newest(checkpoints: Path) -> Path | None:
    """The full checkpoint of the latest update in a run's `checkpoints/`; None where there is none."""
    there = checkpoints.iterdir() if checkpoints.is_dir() else ()
    return max(filter(is_checkpoint, there), key=lambda folder: int(folder.name.partition("-")[2]), default=None)


def load_weights(folder: Path, model: nn.Module) -> int:
    """Load the weights of the checkpoint in `folder` into `model`, whose frozen ones are in no checkpoint; returns the
    update it is of.

    The model's bytes are held against the manifest; the optimizer's file need not be there.

    Raises CheckpointError where it is damaged or another model's; the model is as it was then.
    """
    found = _NAME.fullmatch(folder.name)
    if not found:
        raise CheckpointError(
            f"{folder} is not called as a checkpoint is", hint="give its own name back: update-00000012"
        )
    update = int(found[1])
    try:
        files = verify(folder, update, only={_MODEL, _STATE})
        # Mapped into memory: what is copied is read, and no more.
        tensors = safetensors.torch.load_file(folder / _MODEL) if _MODEL in files else {}
        saved = codec.unpack(_skeleton(folder), tensors)
    except Damaged as damage:
        raise CheckpointError(
            f"{folder / damage.file} is damaged: {damage.why}",
            hint="evaluate an older checkpoint, or copy this one again from where it came",
        ) from damage
    except (OSError, ValueError, RuntimeError, safetensors.SafetensorError) as error:
        raise CheckpointError(f"{folder} cannot be loaded: {error}") from error
    problems = misfits(saved, trained_state(model))
    if problems:
        raise CheckpointError(
            f"{folder} cannot be loaded: it is of another model",
            problems=problems[:20],
            hint="has the recipe's model() changed since, or an option that it is made by?",
        )
    model.load_state_dict(saved, strict=False)
    return update


def _skeleton(folder: Path) -> Any:
    state = read_json(folder / _STATE)
    if not isinstance(state, dict) or "model" not in state:
        raise Damaged(_STATE, "it says nothing of a model")
    return state["model"]
