"""Loading of only the weights from a full checkpoint, without reading its other tensors."""

from pathlib import Path

from torch import nn

from shoestring.base.errors import CheckpointError
from shoestring.training.checkpoint.compatibility import state_mismatches
from shoestring.training.checkpoint.manifest import AVERAGED, DamagedFileError, read_manifest
from shoestring.training.checkpoint.names import update_of
from shoestring.training.checkpoint.sections import read_sections
from shoestring.training.checkpoint.trained import load_attributes, state_like


def is_checkpoint(folder: Path) -> bool:
    """Return whether a directory has the name of a full checkpoint."""
    return update_of(folder.name) is not None


def newest(checkpoints: Path) -> Path | None:
    """Return the full checkpoint of the latest update in a run's `checkpoints/`; None if there is none."""
    folders = checkpoints.iterdir() if checkpoints.is_dir() else ()
    return max(filter(is_checkpoint, folders), key=lambda folder: update_of(folder.name) or 0, default=None)


def load_weights(folder: Path, model: nn.Module) -> int:
    """Load the weights of the checkpoint in `folder` into `model` and return the checkpoint's update.

    If the run averages its weights, the averages are loaded, and the other tensors as they were trained. Frozen weights
    that the recipe does not change are not in checkpoints and stay as they are. The model's file is verified against
    the manifest; the optimizer's file may be missing.

    Raises CheckpointError if the checkpoint is damaged or of another model; the model is unchanged then.
    """
    update = update_of(folder.name)
    if update is None:
        raise CheckpointError(
            f"{folder} does not have the name of a checkpoint", hint="rename it back, for example to update-00000012"
        )
    try:
        # Memory-mapped: only the tensors that are copied are read.
        is_averaged = AVERAGED in read_manifest(folder).weights
        sections = read_sections(folder, update, only={"model", "averaged"} if is_averaged else {"model"})
        averages = sections["averaged"] if is_averaged else {}
        saved = {**sections["model"], **averages}
    except DamagedFileError as damage:
        raise CheckpointError(
            f"{folder / damage.file} is damaged: {damage.reason}",
            hint="evaluate an older checkpoint, or copy this one again from its source",
        ) from damage
    problems = state_mismatches(saved, state_like(model, saved), dtypes=not is_averaged)
    if problems:
        raise CheckpointError(
            f"{folder} cannot be loaded: its weights are of another model",
            problems=problems[:20],
            hint="check whether the recipe's model() has changed since, or an option that it uses",
        )
    model.load_state_dict(saved, strict=False)
    load_attributes(model, saved)
    # Again, because a tied weight also has names under which it was saved as it was trained.
    model.load_state_dict(averages, strict=False)
    return update
