"""Reading a run's full checkpoints without changing its directory, and comparing weights with theirs."""

import hashlib
from pathlib import Path
from typing import Any

from shoestring.base.errors import CheckpointError
from shoestring.training.checkpoint.manifest import DamagedFileError, read_manifest
from shoestring.training.checkpoint.names import update_of
from shoestring.training.checkpoint.sections import read_sections
from shoestring.training.checkpoint.snapshot import snapshot
from shoestring.training.checkpoint.store import Restored
from shoestring.training.checkpoint.tensors import serialize
from shoestring.training.checkpoint.writing import METADATA, MODEL_FILE


def weights_digest(model_state: Any) -> str:
    """Return the SHA-256 of the file `model.safetensors` of a checkpoint with this section `model`."""
    digest = hashlib.sha256()
    for piece in serialize(snapshot({"model": model_state}).sections["model"].tensors, METADATA):
        digest.update(piece)
    return digest.hexdigest()


def saved_weights_digest(folder: Path) -> str | None:
    """Return that digest of the checkpoint in `folder` from its manifest; None without a valid one."""
    try:
        return read_manifest(folder).files[MODEL_FILE].sha256
    except (DamagedFileError, CheckpointError, LookupError):
        return None


def read_earlier(root: Path, update: int) -> tuple[Restored | None, list[str]]:
    """Return the newest valid checkpoint in `root` of at most `update`, None without one, and the damage of others.

    Nothing is written, unlike in opening a store.
    """
    damage: list[str] = []
    folders = {update_of(path.name): path for path in (root.iterdir() if root.is_dir() else ())}
    for number in sorted((number for number in folders if number is not None and number <= update), reverse=True):
        try:
            return Restored(update=number, path=folders[number], state=read_sections(folders[number], number)), damage
        except DamagedFileError as error:
            damage.append(f"{folders[number].name}/{error.file}: {error.reason}")
    return None, damage
