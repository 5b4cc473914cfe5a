"""The directory of a run with real checkpoints, without training."""

from pathlib import Path

import torch

from shoestring.remote.backup.copying import Copier
from shoestring.remote.backup.folder_store import FolderStore
from shoestring.training.checkpoint.files import write_json
from shoestring.training.checkpoint.fileset import replace_weights
from shoestring.training.checkpoint.store import Store
from shoestring.training.run_directory.directory import RunDirectory

RUN_ID, OTHER_ID = "1" * 32, "2" * 32


def save(path: Path, update: int) -> RunDirectory:
    """Save a checkpoint of `update`, with a status and an event."""
    run = RunDirectory(path)
    Store(run.checkpoints).save(update, {"model": {"weight": torch.full((64,), float(update))}, "update": update})
    run.best.mkdir(exist_ok=True)
    if not (run.best / "manifest.json").exists():
        replace_weights(run.best, {"model.safetensors": [b"best"]}, update)
    write_json(run.plan_file, {"recipe": "temporal"})
    write_json(run.state_file, {"status": "running", "update": update})
    with run.events_file.open("a") as file:
        file.write(f'{{"event": "save", "session": 1, "time": 1.0, "update": {update}}}\n')
    return run


def copier(run: RunDirectory, copies: Path, run_id: str = RUN_ID) -> Copier:
    """Return what copies the run to a folder."""
    return Copier(run, FolderStore(copies), run_id, on_block=lambda size: None)


def content(path: Path) -> dict[str, bytes]:
    """Return all files of a directory."""
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}
