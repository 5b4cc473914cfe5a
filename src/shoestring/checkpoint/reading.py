"""A checkpoint's state, read a section at a time from files that are mapped into memory rather than loaded."""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from shoestring.checkpoint import codec
from shoestring.checkpoint.files import read_json
from shoestring.checkpoint.manifest import MANIFEST, STATE, Damaged, read_manifest, verify_file
from shoestring.checkpoint.mapped import UNREADABLE, MappedFile
from shoestring.errors import CheckpointError


def sections(folder: Path, update: int, *, only: Collection[str] | None = None) -> Mapping[str, Any]:
    """The state in `folder`, the checkpoint of `update`: every byte was held against the manifest, and every section
    can be put together. Of the sections in `only` where that is given, whatever became of the others.

    Raises Damaged where that is not so, and CheckpointError for a format of another version.
    """
    files = _verified(folder, update, {STATE, *map(_file, only)} if only is not None else None)
    skeletons = _skeletons(folder, files)
    if only is not None:
        for name in only - skeletons.keys():
            raise Damaged(STATE, f"it says nothing of a {name}")
        skeletons = {name: skeletons[name] for name in only}
    for name, skeleton in skeletons.items():
        try:
            codec.unpack(skeleton, dict.fromkeys(_names(folder / _file(name)) if _file(name) in files else ()))
        except CheckpointError as error:
            raise Damaged(STATE, f"{name}: {error.message[:200]}") from error
    return _Sections(folder, skeletons, files)


class _Sections(Mapping[str, Any]):
    def __init__(self, folder: Path, skeletons: dict[str, Any], files: set[str]) -> None:
        self._folder, self._skeletons, self._files = folder, skeletons, files

    def __getitem__(self, name: str) -> Any:
        skeleton, path = self._skeletons[name], self._folder / _file(name)
        try:
            return codec.unpack(skeleton, MappedFile(path) if path.name in self._files else {})
        except UNREADABLE as error:
            raise CheckpointError(f"{path} cannot be read: {error}") from error

    def __iter__(self) -> Iterator[str]:
        return iter(self._skeletons)

    def __len__(self) -> int:
        return len(self._skeletons)


def _verified(folder: Path, update: int, only: Collection[str] | None) -> set[str]:
    """The names of the checkpoint's files, each of which is what was written; of those in `only` where it is given."""
    if folder.is_symlink():
        raise Damaged(MANIFEST, "the checkpoint is a link to elsewhere")
    manifest = read_manifest(folder)
    if manifest.kind != "full" or manifest.update != update:
        raise Damaged(MANIFEST, "it does not describe this checkpoint")
    files = {name for name in manifest.files if only is None or name in only}
    for name in sorted(files):
        verify_file(folder / name, manifest.files[name])
    return files


def _skeletons(folder: Path, files: set[str]) -> dict[str, Any]:
    """By section, what JSON says of it."""
    try:
        skeletons = read_json(folder / STATE)
    except (OSError, ValueError) as error:
        raise Damaged(STATE, f"it cannot be read: {error}") from error
    if not isinstance(skeletons, dict) or not files - {STATE} <= set(map(_file, skeletons)):
        raise Damaged(STATE, "it is not the state of these files")
    return skeletons


def _names(path: Path) -> list[str]:
    try:
        return list(MappedFile(path))
    except UNREADABLE as error:
        raise Damaged(path.name, f"{path} cannot be read: {error}") from error


def _file(section: str) -> str:
    """Where the tensors of a section lie."""
    return f"{section}.safetensors"
