"""Reading a checkpoint's state section by section, from memory-mapped files."""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from shoestring.checkpoint import codec
from shoestring.checkpoint.manifest import MANIFEST, STATE, DamagedFileError, read_manifest, verify_file
from shoestring.checkpoint.mapped import READ_ERRORS, MappedFile
from shoestring.errors import CheckpointError
from shoestring.reading import read_json


def read_sections(folder: Path, update: int, *, only: Collection[str] | None = None) -> Mapping[str, Any]:
    """Return the state in `folder`, the checkpoint of `update`, after verifying every byte and every section.

    If `only` is given, just these sections are verified and returned; the files of others may be damaged or missing.

    Raises DamagedFileError if verification fails, and CheckpointError for a format of another version.
    """
    files = _verified_files(folder, update, {STATE, *map(_file_name, only)} if only is not None else None)
    skeletons = _read_skeletons(folder, files)
    if only is not None:
        for name in only - skeletons.keys():
            raise DamagedFileError(STATE, f"it has no section {name!r}")
        skeletons = {name: skeletons[name] for name in only}
    for name, skeleton in skeletons.items():
        try:
            path = folder / _file_name(name)
            codec.unpack(skeleton, dict.fromkeys(_tensor_names(path) if path.name in files else ()))
        except CheckpointError as error:
            raise DamagedFileError(STATE, f"{name}: {error.message[:200]}") from error
    return _Sections(folder, skeletons, files)


class _Sections(Mapping[str, Any]):
    def __init__(self, folder: Path, skeletons: dict[str, Any], files: set[str]) -> None:
        self._folder, self._skeletons, self._files = folder, skeletons, files

    def __getitem__(self, name: str) -> Any:
        skeleton, path = self._skeletons[name], self._folder / _file_name(name)
        try:
            return codec.unpack(skeleton, MappedFile(path) if path.name in self._files else {})
        except READ_ERRORS as error:
            raise CheckpointError(f"{path} cannot be read: {error}") from error

    def __iter__(self) -> Iterator[str]:
        return iter(self._skeletons)

    def __len__(self) -> int:
        return len(self._skeletons)


def _verified_files(folder: Path, update: int, only: Collection[str] | None) -> set[str]:
    """Verify the checkpoint's files, or only those in `only` if it is given, and return their names."""
    if folder.is_symlink():
        raise DamagedFileError(MANIFEST, "the checkpoint is a symbolic link")
    manifest = read_manifest(folder)
    if manifest.kind != "full" or manifest.update != update:
        raise DamagedFileError(MANIFEST, "it does not describe this checkpoint")
    files = {name for name in manifest.files if only is None or name in only}
    for name in sorted(files):
        verify_file(folder / name, manifest.files[name])
    return files


def _read_skeletons(folder: Path, files: set[str]) -> dict[str, Any]:
    """Return the JSON skeleton of each section."""
    try:
        skeletons = read_json(folder / STATE)
    except (OSError, ValueError) as error:
        raise DamagedFileError(STATE, f"it cannot be read: {error}") from error
    if not isinstance(skeletons, dict) or not files - {STATE} <= set(map(_file_name, skeletons)):
        raise DamagedFileError(STATE, "it does not match the files of the checkpoint")
    return skeletons


def _tensor_names(path: Path) -> list[str]:
    try:
        return list(MappedFile(path))
    except READ_ERRORS as error:
        raise DamagedFileError(path.name, f"{path} cannot be read: {error}") from error


def _file_name(section: str) -> str:
    """Return the name of the file with the tensors of a section."""
    return f"{section}.safetensors"
