"""Reading a checkpoint's state section by section, from memory-mapped files."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from shoestring.base.errors import CheckpointError
from shoestring.base.reading import read_json
from shoestring.training.checkpoint import codec
from shoestring.training.checkpoint.divided import Pieces
from shoestring.training.checkpoint.manifest import (
    MANIFEST,
    STATE,
    DamagedFileError,
    Manifest,
    Slice,
    read_manifest,
    section_of,
    verify_file,
)
from shoestring.training.checkpoint.mapped import READ_ERRORS, MappedFile


def read_sections(
    folder: Path, update: int, *, only: Collection[str] | None = None, in_pieces: bool = False
) -> Mapping[str, Any]:
    """Return the state in `folder`, the checkpoint of `update`, after verifying every byte and every section.

    If `only` is given, just these sections are verified and returned; the files of others may be damaged or missing.
    Tensors whose rows are in several files are whole, or `Pieces` for a reader that needs only some rows.

    Raises DamagedFileError if verification fails, and CheckpointError for a format of another version.
    """
    manifest, files = _verified_files(folder, update, only)
    skeletons = _read_skeletons(folder, files)
    if only is not None:
        for name in only - skeletons.keys():
            raise DamagedFileError(STATE, f"it has no section {name!r}")
        skeletons = {name: skeletons[name] for name in only}
    for name, skeleton in skeletons.items():
        try:
            codec.unpack(skeleton, dict.fromkeys(_SectionTensors(folder, name, manifest, in_pieces=True)))
        except CheckpointError as error:
            raise DamagedFileError(STATE, f"{name}: {error.message[:200]}") from error
    return _Sections(folder, skeletons, manifest, in_pieces=in_pieces)


class _Sections(Mapping[str, Any]):
    def __init__(self, folder: Path, skeletons: dict[str, Any], manifest: Manifest, *, in_pieces: bool) -> None:
        self._folder, self._skeletons, self._manifest, self._in_pieces = folder, skeletons, manifest, in_pieces

    def __getitem__(self, name: str) -> Any:
        skeleton = self._skeletons[name]
        try:
            return codec.unpack(
                skeleton, _SectionTensors(self._folder, name, self._manifest, in_pieces=self._in_pieces)
            )
        except DamagedFileError as damage:
            raise CheckpointError(damage.reason) from damage

    def __iter__(self) -> Iterator[str]:
        return iter(self._skeletons)

    def __len__(self) -> int:
        return len(self._skeletons)


class _SectionTensors(Mapping[str, Any]):
    """The tensors of a section, mapped anew from its files at each access. Raises DamagedFileError."""

    def __init__(self, folder: Path, section: str, manifest: Manifest, *, in_pieces: bool) -> None:
        self._folder = folder
        self._files: dict[str, MappedFile] = {}
        for name in sorted(manifest.files):
            if section_of(name) == section:
                with _naming(folder / name):
                    self._files[name] = MappedFile(folder / name)
        prefix = f"{section}/"
        self._slices = {
            key.removeprefix(prefix): sorted(pieces, key=lambda piece: (piece.offset, piece.length))
            for key, pieces in manifest.slices.items()
            if key.startswith(prefix)
        }
        self._in_pieces = in_pieces
        whole = {name: file for file, content in self._files.items() for name in content if name not in self._slices}
        self._file_of = whole | dict.fromkeys(self._slices, "")

    def __getitem__(self, name: str) -> Any:
        if slices := self._slices.get(name):
            with _naming(self._folder / slices[0].file):
                pieces = Pieces({piece.offset: self._piece(name, piece) for piece in slices}, slices[0].dim)
                return pieces if self._in_pieces else pieces.whole()
        with _naming(self._folder / self._file_of[name]):
            return self._files[self._file_of[name]][name]

    def __contains__(self, name: object) -> bool:
        return name in self._file_of

    def __iter__(self) -> Iterator[str]:
        return iter(self._file_of)

    def __len__(self) -> int:
        return len(self._file_of)

    def _piece(self, name: str, piece: Slice) -> Tensor:
        tensor = self._files[piece.file][name] if piece.file in self._files else None
        if tensor is None or tuple(tensor.shape) != piece.shape:
            raise DamagedFileError(piece.file, f"its {name} does not match the slices of the manifest")
        return tensor


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Raise DamagedFileError for an error of reading a file."""
    try:
        yield
    except (*READ_ERRORS, LookupError) as error:
        raise DamagedFileError(path.name, f"{path} cannot be read: {error}") from error


def _verified_files(folder: Path, update: int, sections: Collection[str] | None) -> tuple[Manifest, set[str]]:
    """Verify the checkpoint's files, or only those of `sections` if given, and return the manifest and their names."""
    if folder.is_symlink():
        raise DamagedFileError(MANIFEST, "the checkpoint is a symbolic link")
    manifest = read_manifest(folder)
    if manifest.kind != "full" or manifest.update != update:
        raise DamagedFileError(MANIFEST, "it does not describe this checkpoint")
    files = {name for name in manifest.files if sections is None or name == STATE or section_of(name) in sections}
    for name in sorted(files):
        verify_file(folder / name, manifest.files[name])
    return manifest, files


def _read_skeletons(folder: Path, files: set[str]) -> dict[str, Any]:
    """Return the JSON skeleton of each section."""
    try:
        skeletons = read_json(folder / STATE)
    except (OSError, ValueError) as error:
        raise DamagedFileError(STATE, f"it cannot be read: {error}") from error
    if not isinstance(skeletons, dict) or not {section_of(name) for name in files - {STATE}} <= skeletons.keys():
        raise DamagedFileError(STATE, "it does not match the files of the checkpoint")
    return skeletons
