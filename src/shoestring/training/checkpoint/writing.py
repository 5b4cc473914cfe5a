"""The files of one full checkpoint: the tensors of each section, the other values, and the manifest of both."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from shoestring.base.errors import CheckpointError
from shoestring.training.checkpoint.divided import rows_by_rank
from shoestring.training.checkpoint.files import (
    sync,
    write_file,
    write_text,
)
from shoestring.training.checkpoint.identity import RunIdentity
from shoestring.training.checkpoint.manifest import (
    AVERAGED,
    MANIFEST,
    STATE,
    TRAINED,
    FileEntry,
    Manifest,
    Slice,
    file_name,
    section_of,
)
from shoestring.training.checkpoint.snapshot import Section, Snapshot
from shoestring.training.checkpoint.tensors import serialize

MODEL_FILE = "model.safetensors"
_SETS = {TRAINED: "model", AVERAGED: "averaged"}
"""The section of each set of weights."""
METADATA = {"format": "pt"}
"""The metadata of the files with tensors."""


def write_tensors(folder: Path, state: Snapshot, rank: int | None = None) -> dict[str, FileEntry]:
    """Write the tensors of each section to a file of its own, and return the files. Raises OSError.

    With `rank`, these are the rows that this one of several ranks has; the first one writes what is not divided too.
    """
    files = {}
    for name, section in state.sections.items():
        own_rank = rank if section.divided else None
        tensors = {key: tensor for key, tensor in section.tensors.items() if not rank or key in section.divided}
        if tensors:
            path = folder / file_name(name, own_rank)
            files[path.name] = FileEntry.for_file(path, write_file(path, serialize(tensors, METADATA)), own_rank)
    return files


def write_set(
    folder: Path,
    update: int,
    state: Snapshot,
    files: Mapping[str, FileEntry],
    *,
    retained: bool = False,
    run: RunIdentity | None = None,
) -> None:
    """Complete the checkpoint in `folder`, whose tensors are in `files`, by the state's other values and a manifest."""
    skeletons = {name: section.skeleton for name, section in state.sections.items()}
    digest = write_text(folder / STATE, json.dumps(skeletons, allow_nan=False))
    files = {**files, STATE: FileEntry.for_file(folder / STATE, digest)}
    weights = {name: tuple(sorted(file for file in files if section_of(file) == _SETS[name])) for name in _SETS}
    try:
        manifest = Manifest(
            kind="full",
            update=update,
            files=files,
            weights={name: members for name, members in weights.items() if members},
            slices={key: slices for name, section in state.sections.items() for key, slices in _slices(name, section)},
            retained=retained,
            run=run,
        )
    except ValueError as error:
        raise CheckpointError(
            f"the checkpoint of update {update} cannot be saved: {error}",
            hint="name the sections of a state with letters, digits and underscores only",
        ) from error
    write_text(folder / MANIFEST, manifest.text())
    sync(folder)


def _slices(name: str, section: Section) -> Iterable[tuple[str, tuple[Slice, ...]]]:
    """Yield the slices of each divided tensor of a section, by its key in the manifest."""
    for key, (rows, *row_shape) in section.divided.items():
        yield (
            f"{name}/{key}",
            tuple(
                Slice(file=file_name(name, rank), dim=0, offset=part.first, shape=(part.count, *row_shape))
                for rank, part in enumerate(rows_by_rank(rows, section.ranks))
            ),
        )
