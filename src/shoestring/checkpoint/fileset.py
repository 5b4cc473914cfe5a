"""A set of files that is replaced as one, in a directory that stays.

Each new file is written whole beside the one it will replace, as `.model.safetensors.next`. The new `manifest.json`
then takes its place: from that instant on the set is the new one, wherever a file of it still lies. Last, each takes
its name. Whoever reads takes of the two the one that the manifest speaks of; a process that is killed on the way
leaves the old set or the new one, and the next to write there puts the names right.
"""

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from shoestring.checkpoint.files import Buffer, remove, sync, write_file, write_text
from shoestring.checkpoint.manifest import (
    FILE,
    MANIFEST,
    TRAINED,
    Damaged,
    FileEntry,
    Manifest,
    difference,
    load,
    read_manifest,
    verify_file,
)
from shoestring.checkpoint.mapped import UNREADABLE, MappedFile
from shoestring.errors import CheckpointError

# Version 0.1.0 had the number of the process in place of `next`.
_LEFTOVER = re.compile(rf"\.(?P<name>{FILE}|{re.escape(MANIFEST)})\.(?:next|[0-9]+)")


def staged(folder: Path, name: str) -> Path:
    """Where a file lies until it takes its name."""
    return folder / f".{name}.next"


def replace_weights(folder: Path, contents: Mapping[str, Iterable[Buffer]], update: int | None) -> None:
    """Replace the set of weights in `folder` by files of these contents.

    Raises OSError; there is the old set then, or the new one, and what could not be written is gone.
    """
    settle(folder)
    try:
        entries = {}
        for name, pieces in contents.items():
            path = staged(folder, name)
            entries[name] = FileEntry.written(path, write_file(path, pieces))
        manifest = Manifest(kind="weights", update=update, files=entries, weights={TRAINED: tuple(sorted(entries))})
        write_text(staged(folder, MANIFEST), manifest.text())
        sync(folder)
        staged(folder, MANIFEST).replace(folder / MANIFEST)
        sync(folder)
        for name in entries:
            staged(folder, name).replace(folder / name)
        sync(folder)
    except BaseException:
        with suppress(OSError, CheckpointError):
            settle(folder)
        raise


def settle(folder: Path) -> None:
    """Put right what a process that was killed has left: a file that the manifest speaks of takes its name, any other
    is removed. Raises OSError, and CheckpointError for a manifest of a later version, whose files nobody here knows.
    """
    leftovers = [(path, match["name"]) for path in folder.iterdir() if (match := _LEFTOVER.fullmatch(path.name))]
    if not leftovers:
        return
    entries = _current(folder)
    sync(folder)  # no file takes its name before the manifest that speaks of it is on the disk
    for path, name in leftovers:
        if path == staged(folder, name) and name in entries and not difference(path, entries[name]):
            path.replace(folder / name)
        else:
            remove(path)
    sync(folder)


def has_manifest(folder: Path) -> bool:
    """Whether the files of `folder` can be held against a manifest. Raises OSError."""
    try:
        os.lstat(folder / MANIFEST)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def open_verified(folder: Path, name: str) -> MappedFile:
    """The file `name` of the weights in `folder`, all of whose files are what was written. Nothing is written.

    Raises Damaged, naming the file that is not, and CheckpointError for a format of another version.
    """
    tried: Manifest | None = None
    while True:
        manifest = read_manifest(folder)
        try:
            opened = _opened(folder, name, manifest)
        except Damaged:
            # Another process may save at this moment: then the second look finds the files where they belong.
            if manifest == tried:
                raise
            tried = manifest
            continue
        if read_manifest(folder) == manifest:
            return opened


def _opened(folder: Path, name: str, manifest: Manifest) -> MappedFile:
    members = manifest.weights.get(TRAINED, ())
    if name not in members:
        raise Damaged(MANIFEST, f"the weights are {', '.join(members) or 'elsewhere'}, not {name}")
    paths = {member: _whole(folder, member, manifest.files[member]) for member in members}
    try:
        return MappedFile(paths[name])
    except UNREADABLE as error:
        raise Damaged(name, str(error)) from error


def _whole(folder: Path, name: str, entry: FileEntry) -> Path:
    """Where the file `name` lies that the manifest speaks of."""
    with suppress(Damaged):
        verify_file(staged(folder, name), entry)
        return staged(folder, name)
    verify_file(folder / name, entry)
    return folder / name


def _current(folder: Path) -> Mapping[str, FileEntry]:
    """The files of the set that is there; none where no manifest speaks of any."""
    try:
        return load(folder).files
    except (FileNotFoundError, Damaged):
        return {}
