"""The weights of a full checkpoint without the rest of it: of its files only the model's is read, and what names it."""

from pathlib import Path

from torch import nn

from shoestring.checkpoint.fitting import misfits
from shoestring.checkpoint.manifest import Damaged
from shoestring.checkpoint.names import update_of
from shoestring.checkpoint.reading import sections
from shoestring.checkpoint.trained import trained_state
from shoestring.errors import CheckpointError


def is_checkpoint(folder: Path) -> bool:
    """Whether a directory is called as a full checkpoint is."""
    return update_of(folder.name) is not None


def newest(checkpoints: Path) -> Path | None:
    """The full checkpoint of the latest update in a run's `checkpoints/`; None where there is none."""
    there = checkpoints.iterdir() if checkpoints.is_dir() else ()
    return max(filter(is_checkpoint, there), key=lambda folder: update_of(folder.name) or 0, default=None)


def load_weights(folder: Path, model: nn.Module) -> int:
    """Load the weights of the checkpoint in `folder` into `model`, whose frozen ones are in no checkpoint; returns the
    update it is of.

    The model's bytes are held against the manifest; the optimizer's file need not be there.

    Raises CheckpointError where it is damaged or another model's; the model is as it was then.
    """
    update = update_of(folder.name)
    if update is None:
        raise CheckpointError(
            f"{folder} is not called as a checkpoint is", hint="give its own name back: update-00000012"
        )
    try:
        # Mapped into memory: what is copied is read, and no more.
        saved = sections(folder, update, only={"model"})["model"]
    except Damaged as damage:
        raise CheckpointError(
            f"{folder / damage.file} is damaged: {damage.why}",
            hint="evaluate an older checkpoint, or copy this one again from where it came",
        ) from damage
    problems = misfits(saved, trained_state(model))
    if problems:
        raise CheckpointError(
            f"{folder} cannot be loaded: it is of another model",
            problems=problems[:20],
            hint="has the recipe's model() changed since, or an option that it is made by?",
        )
    model.load_state_dict(saved, strict=False)
    return update
