"""Atomic replacement of a set of files in an existing directory.

Each new file is first written completely next to the file it will replace, as `.model.safetensors.next`. Then the new
`manifest.json` replaces the old one; this commits the new set, even while its files still have their staged names.
Last, each file is renamed to its final name. A reader takes whichever of the two files matches the manifest. A process
that is killed midway leaves the old set or the new one, and the next writer in that directory completes the renames.
"""

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from shoestring.base.errors import CheckpointError
from shoestring.training.checkpoint.files import Buffer, remove_own, sync, write_file, write_text
from shoestring.training.checkpoint.identity import RunIdentity
from shoestring.training.checkpoint.manifest import (
    MANIFEST,
    STAGED_FILE,
    TRAINED,
    DamagedFileError,
    FileEntry,
    Manifest,
    describe_difference,
    load_manifest,
    read_manifest,
    verify_file,
)
from shoestring.training.checkpoint.mapped import READ_ERRORS, MappedFile


def staged_path(folder: Path, name: str) -> Path:
    """Return the path that a new file has until it is renamed to its final name."""
    return folder / f".{name}.next"


def replace_weights(
    folder: Path, contents: Mapping[str, Iterable[Buffer]], update: int | None, run: RunIdentity | None = None
) -> None:
    """Replace the set of weights in `folder` by files with these contents, which are of `run`.

    Raises OSError; `folder` then has the old set or the new one, and incomplete files are removed.
    """
    complete_replacement(folder)
    try:
        entries = {}
        for name, chunks in contents.items():
            path = staged_path(folder, name)
            entries[name] = FileEntry.for_file(path, write_file(path, chunks))
        manifest = Manifest(
            kind="weights", update=update, files=entries, weights={TRAINED: tuple(sorted(entries))}, run=run
        )
        write_text(staged_path(folder, MANIFEST), manifest.text())
        sync(folder)
        staged_path(folder, MANIFEST).replace(folder / MANIFEST)
        sync(folder)
        for name in entries:
            staged_path(folder, name).replace(folder / name)
        sync(folder)
    except BaseException:
        with suppress(OSError, CheckpointError):
            complete_replacement(folder)
        raise


def complete_replacement(folder: Path) -> None:
    """Complete or discard the replacement of a process that was killed.

    A staged file that the manifest lists is renamed to its final name, any other one is removed.

    Raises OSError, and CheckpointError for a manifest of a later format, whose files are unknown to this version.
    """
    leftovers = [(path, match["name"]) for path in folder.iterdir() if (match := STAGED_FILE.fullmatch(path.name))]
    if not leftovers:
        return
    entries = _current_files(folder)
    sync(folder)  # the manifest has to be on the disk before any file that it lists is renamed
    for path, name in leftovers:
        if path == staged_path(folder, name) and name in entries and not describe_difference(path, entries[name]):
            path.replace(folder / name)
        else:
            remove_own(path, STAGED_FILE)
    sync(folder)


def has_manifest(folder: Path) -> bool:
    """Return whether `folder` has a manifest to verify its files with. Raises OSError."""
    try:
        os.lstat(folder / MANIFEST)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def open_verified(folder: Path, name: str) -> MappedFile:
    """Verify all files of the weights in `folder` and return the file `name`. Nothing is written.

    Raises DamagedFileError for a file that does not match, and CheckpointError for a format of another version.
    """
    previous_manifest: Manifest | None = None
    while True:
        manifest = read_manifest(folder)
        try:
            opened_file = _open_file(folder, name, manifest)
        except DamagedFileError:
            # Another process may be saving at this moment: the second attempt then finds the renamed files.
            if manifest == previous_manifest:
                raise
            previous_manifest = manifest
            continue
        if read_manifest(folder) == manifest:
            return opened_file


def _open_file(folder: Path, name: str, manifest: Manifest) -> MappedFile:
    members = manifest.weights.get(TRAINED, ())
    if name not in members:
        raise DamagedFileError(MANIFEST, f"it lists {', '.join(members) or 'no files'} as the weights, not {name}")
    paths = {member: _find_verified(folder, member, manifest.files[member]) for member in members}
    try:
        return MappedFile(paths[name])
    except READ_ERRORS as error:
        raise DamagedFileError(name, str(error)) from error


def _find_verified(folder: Path, name: str, entry: FileEntry) -> Path:
    """Return the path of the file `name` that matches its entry, staged or final. Raises DamagedFileError."""
    with suppress(DamagedFileError):
        verify_file(staged_path(folder, name), entry)
        return staged_path(folder, name)
    verify_file(folder / name, entry)
    return folder / name


def _current_files(folder: Path) -> Mapping[str, FileEntry]:
    """Return the files that the manifest in `folder` lists; none without a readable manifest."""
    try:
        return load_manifest(folder).files
    except (FileNotFoundError, DamagedFileError):
        return {}
