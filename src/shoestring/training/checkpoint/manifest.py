"""The `manifest.json` of a set of files, and the verification of a file against its entry.

    {"format": 3, "kind": "full", "update": 1200,
     "run": {"id": "0b7a...", "recipe": "legal", "options": {"seed": 0}},
     "files": {"model.safetensors": {"bytes": 8, "sha256": "9f86..."}, "state.json": {"bytes": 2, "sha256": "4413..."}},
     "weights": {"trained": ["model.safetensors"]},
     "sha256": "..."}

The last `sha256` is the digest of all other keys. If several ranks write a state, each has its own file, such as
`model-rank0003.safetensors` with `"rank": 3`, and `slices` lists for each tensor that is divided among files, by its
section and its name there, the parts that make it up:
`{"model/weight": [{"file": "model-rank0000.safetensors", "dim": 0, "offset": 0, "shape": [4, 8]}, ...]}`.

No other module depends on the format of a manifest. Formats 1, of version 0.1.0, and 2, in which no run is named, are
read too.
"""

import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from shoestring.base.errors import CheckpointError
from shoestring.base.reading import read_json, regular_file_size
from shoestring.training.checkpoint.files import matches_digest, sha256, with_digest
from shoestring.training.checkpoint.identity import RunIdentity

FORMAT = 3
MANIFEST = "manifest.json"
STATE = "state.json"
TRAINED = "trained"
"""The name of the set of weights that training continues from."""
AVERAGED = "averaged"
"""The name of the set of averaged weights, which are evaluated and saved for use."""

Kind = Literal["full", "weights"]

FILE = r"(?P<section>[A-Za-z0-9_]{1,64})(?:-rank(?P<rank>[0-9]{4}))?\.safetensors|state\.json|adapter_config\.json"
"""A regular expression for the names of files in a set."""
STAGED_FILE = re.compile(rf"\.(?P<name>{FILE}|{re.escape(MANIFEST)})\.(?:next|[0-9]+)")
"""The names of new files and of those left by killed processes. Version 0.1.0 wrote the process id, not `next`."""
_FILE = re.compile(FILE)
_SET_NAME = re.compile(r"[a-z_]{1,64}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_MAX_COUNT = 2**63 - 1
_MAX_DIMS = 64
_MAX_TENSOR_NAME = 4096


class DamagedFileError(Exception):
    """A file that does not match its manifest. The caller turns it into an event or a CheckpointError."""

    def __init__(self, file: str, reason: str) -> None:
        super().__init__(file, reason)
        self.file, self.reason = file, reason


@dataclass(frozen=True, kw_only=True)
class FileEntry:
    """The size and digest of a file at the time it was written."""

    bytes: int
    sha256: str
    rank: int | None = None
    """The rank that wrote the file, if there were several."""

    def __post_init__(self) -> None:
        _check_count(self.bytes, "bytes")
        if not isinstance(self.sha256, str) or not _DIGEST.fullmatch(self.sha256):
            raise ValueError(f"sha256 is {_short_repr(self.sha256)}, which is not a SHA-256 digest")
        if self.rank is not None:
            _check_count(self.rank, "rank", maximum=9999)

    @classmethod
    def for_file(cls, path: Path, digest: str, rank: int | None = None) -> "FileEntry":
        """Return the entry of a file that was just written and has this SHA-256. Raises OSError."""
        return cls(bytes=path.stat().st_size, sha256=digest, rank=rank)


@dataclass(frozen=True, kw_only=True)
class Slice:
    """The part of a tensor in a file: of size `shape`, starting at `offset` along `dim`."""

    file: str
    dim: int
    offset: int
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.shape) > _MAX_DIMS:
            raise ValueError(f"a slice has {len(self.shape)} dimensions, but at most {_MAX_DIMS} are supported")
        for size in self.shape:
            _check_count(size, "shape")
        _check_count(math.prod(self.shape), "the product of shape")
        _check_count(self.offset, "offset")
        _check_count(self.dim, "dim", maximum=max(0, len(self.shape) - 1))

    @property
    def length(self) -> int:
        """The size along `dim`; 1 for a tensor without dimensions."""
        return self.shape[self.dim] if self.shape else 1

    @property
    def other_sizes(self) -> tuple[int, ...]:
        """The sizes along all other dimensions."""
        return self.shape[: self.dim] + self.shape[self.dim + 1 :]


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A set of files that belong together. Raises ValueError naming the first inconsistent part."""

    kind: Kind
    """`full` for a full checkpoint, `weights` for weights only."""
    update: int | None
    """The update that was saved; may be unknown for weights."""
    files: Mapping[str, FileEntry]
    weights: Mapping[str, tuple[str, ...]]
    """The files of each set of weights, by the name of the set: the trained weights, and others such as an average."""
    slices: Mapping[str, tuple[Slice, ...]] = field(default_factory=dict)
    """By tensor name, the parts of a tensor that is divided among files."""
    retained: bool = False
    """Whether a full checkpoint is kept when newer ones exist."""
    run: RunIdentity | None = None
    """The run that has saved it; None for weights without a run, and in formats before 3."""

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ValueError(f"kind is {_short_repr(self.kind)}, which is neither full nor weights")
        if self.update is not None:
            _check_count(self.update, "update")
        elif self.kind == "full":
            raise ValueError("update is missing")
        if type(self.retained) is not bool:
            raise ValueError(f"retained is {_short_repr(self.retained)}, which is neither true nor false")
        for name, entry in self.files.items():
            _check_name(name, entry)
        if self.kind == "full" and STATE not in self.files:
            raise ValueError(f"files has no {STATE}")
        if self.kind == "weights" and TRAINED not in self.weights:
            raise ValueError(f"weights has no {TRAINED!r}")
        for name, members in self.weights.items():
            if not _SET_NAME.fullmatch(name) or not members:
                files = _short_repr(list(members))
                raise ValueError(f"weights has {_short_repr(name)}: {files}, which is not a valid set")
            _check_members(f"weights {name!r}", members, self.files)
        for name, slices in self.slices.items():
            if not 0 < len(name) <= _MAX_TENSOR_NAME:
                raise ValueError(f"slices has {_short_repr(name)}, which is not a valid tensor name")
            _check_members(f"slices of {_short_repr(name)}", [piece.file for piece in slices], self.files)
            _check_cover(name, slices)

    def text(self) -> str:
        """Return the content of the manifest file."""
        return json.dumps(add_digest(self._as_json()), indent=1)

    def _as_json(self) -> dict[str, Any]:
        files = {
            name: {"bytes": entry.bytes, "sha256": entry.sha256} | ({} if entry.rank is None else {"rank": entry.rank})
            for name, entry in sorted(self.files.items())
        }
        slices = {
            name: [
                {"file": piece.file, "dim": piece.dim, "offset": piece.offset, "shape": list(piece.shape)}
                for piece in pieces
            ]
            for name, pieces in self.slices.items()
        }
        return {
            "format": FORMAT,
            "kind": self.kind,
            "update": self.update,
            **({"run": self.run.json()} if self.run else {}),
            "files": files,
            "weights": {name: list(members) for name, members in self.weights.items()},
            **({"slices": slices} if slices else {}),
            **({"retained": True} if self.retained else {}),
        }


def parse(value: Any, folder: Path) -> Manifest:
    """Return the manifest whose JSON is `value`; `folder` is its location, for error messages.

    Raises DamagedFileError if it is malformed, and CheckpointError for a format of another version.
    """
    unsigned = dict(value) if isinstance(value, dict) else {}
    is_intact = matches_digest(unsigned)
    unsigned.pop("sha256", None)
    if not is_intact:
        raise DamagedFileError(MANIFEST, "its SHA-256 digest does not match its content")
    file_format = unsigned.pop("format", None)
    read = _READERS.get(file_format) if type(file_format) is int else None
    if read is None:
        raise CheckpointError(
            f"{folder} has format {str(file_format)[:20]}, but this version reads formats 1 to {FORMAT}",
            hint="continue with the version of shoestring that wrote it",
        )
    try:
        return read(unsigned)
    except ValueError as error:
        raise DamagedFileError(MANIFEST, f"it does not describe this checkpoint: {error}") from error


def load_manifest(folder: Path) -> Manifest:
    """Return the manifest in `folder`. Raises OSError, and the errors of `parse`."""
    try:
        return parse(read_json(folder / MANIFEST), folder)
    except ValueError as error:
        raise DamagedFileError(MANIFEST, f"it cannot be read: {error}") from error


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest in `folder` as `load_manifest` does, but raise DamagedFileError instead of OSError."""
    try:
        return load_manifest(folder)
    except OSError as error:
        raise DamagedFileError(MANIFEST, f"it cannot be read: {error}") from error


def file_name(section: str, rank: int | None = None) -> str:
    """Return the name of the file with the tensors of a section; with `rank`, that of this process."""
    return f"{section}.safetensors" if rank is None else f"{section}-rank{rank:04d}.safetensors"


def section_of(file: str) -> str | None:
    """Return the section whose tensors the file of a manifest contains; None for any other file."""
    match = _FILE.fullmatch(file)
    return match["section"] if match else None


def describe_difference(path: Path, entry: FileEntry) -> str:
    """Return how a file differs from its entry; an empty string if it matches. Raises OSError."""
    try:
        size = regular_file_size(path)
        if size != entry.bytes:
            return f"it has {size} bytes, but {entry.bytes} were written"
        return "" if sha256(path) == entry.sha256 else "its SHA-256 digest does not match the manifest"
    except ValueError as error:
        return f"it cannot be read: {error}"


def verify_file(path: Path, entry: FileEntry) -> None:
    """Raise DamagedFileError if a file does not match its entry."""
    try:
        reason = describe_difference(path, entry)
    except FileNotFoundError:
        reason = "it is missing"
    except OSError as error:
        reason = f"it cannot be read: {error}"
    if reason:
        raise DamagedFileError(path.name, reason)


def add_digest(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return `manifest` with the SHA-256 of its content added."""
    return with_digest(manifest)


def _read_format_1(value: dict[str, Any]) -> Manifest:
    """Return the manifest of a full checkpoint, the only kind in format 1."""
    _check_keys(value, "the manifest", {"update", "files"})
    files = _read_files(value["files"])
    model = "model.safetensors"
    return Manifest(
        kind="full", update=value["update"], files=files, weights={TRAINED: (model,)} if model in files else {}
    )


def _read_format_2(value: dict[str, Any]) -> Manifest:
    return _read(value, {"slices", "retained"})


def _read_format_3(value: dict[str, Any]) -> Manifest:
    return _read(value, {"slices", "retained", "run"})


def _read(value: dict[str, Any], optional: set[str]) -> Manifest:
    _check_keys(value, "the manifest", {"kind", "update", "files", "weights"}, optional)
    weights, slices = _require_object(value["weights"], "weights"), _require_object(value.get("slices", {}), "slices")
    return Manifest(
        kind=value["kind"],
        update=value["update"],
        files=_read_files(value["files"]),
        weights={
            name: tuple(
                _require_text(file, "a file of weights")
                for file in _require_list(members, f"weights {_short_repr(name)}")
            )
            for name, members in weights.items()
        },
        slices={
            name: tuple(_read_slice(piece) for piece in _require_list(pieces, f"slices of {_short_repr(name)}"))
            for name, pieces in slices.items()
        },
        retained=value.get("retained", False),
        run=RunIdentity.from_json(value["run"]) if "run" in value else None,
    )


_READERS = {1: _read_format_1, 2: _read_format_2, FORMAT: _read_format_3}


def _read_files(value: Any) -> dict[str, FileEntry]:
    files = {}
    for name, entry in _require_object(value, "files").items():
        _check_keys(_require_object(entry, _short_repr(name)), _short_repr(name), {"bytes", "sha256"}, {"rank"})
        files[name] = FileEntry(**entry)
    return files


def _read_slice(value: Any) -> Slice:
    _check_keys(_require_object(value, "a slice"), "a slice", {"file", "dim", "offset", "shape"})
    shape = tuple(_require_list(value["shape"], "shape"))
    return Slice(file=_require_text(value["file"], "file"), dim=value["dim"], offset=value["offset"], shape=shape)


def _check_name(name: str, entry: FileEntry) -> None:
    match = _FILE.fullmatch(name)
    if not match:
        raise ValueError(f"{_short_repr(name)} is not a valid file name")
    if match["rank"] and entry.rank not in (None, int(match["rank"])):
        raise ValueError(f"{name} has rank {entry.rank}")


def _check_members(subject: str, members: Sequence[str], files: Collection[str]) -> None:
    absent = [name for name in members if name not in files]
    if absent:
        raise ValueError(f"{subject} names {_short_repr(absent[0])}, which is not in files")
    if len(set(members)) < len(members):
        raise ValueError(f"{subject} names a file twice")


def _check_cover(name: str, slices: Sequence[Slice]) -> None:
    """Raise ValueError unless the slices of a tensor cover it without gaps or overlaps."""
    if (
        not slices
        or len({(piece.dim, piece.other_sizes) for piece in slices}) > 1
        or (len(slices) > 1 and not slices[0].shape)
    ):
        raise ValueError(f"slices of {_short_repr(name)} do not fit together")
    end = 0
    for piece in sorted(slices, key=lambda piece: (piece.offset, piece.length)):
        if piece.offset != end:
            raise ValueError(
                f"slices of {_short_repr(name)} {'leave a gap' if piece.offset > end else 'overlap'} at {end}"
            )
        end += piece.length
    _check_count(end * math.prod(slices[0].other_sizes), f"the number of elements of {_short_repr(name)}")


def _check_keys(value: dict[str, Any], subject: str, required: set[str], optional: Collection[str] = ()) -> None:
    if missing := required - value.keys():
        raise ValueError(f"{subject} has no {min(missing)}")
    if unknown := value.keys() - required - set(optional):
        raise ValueError(f"{subject} has {_short_repr(min(unknown))}, which is not a key of this format")


def _check_count(value: Any, subject: str, maximum: int = _MAX_COUNT) -> None:
    if type(value) is not int or not 0 <= value <= maximum:
        raise ValueError(f"{subject} is {_short_repr(value)}, which is not an integer from 0 to {maximum}")


def _require_object(value: Any, subject: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{subject} is not an object")
    return value


def _require_list(value: Any, subject: str) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{subject} is not a list")
    return value


def _require_text(value: Any, subject: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{subject} is {_short_repr(value)}, which is not a string")
    return value


def _short_repr(value: object) -> str:
    return repr(value)[:40]
