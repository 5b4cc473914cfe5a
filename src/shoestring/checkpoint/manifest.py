"""What a set of files says of itself, its `manifest.json`, and whether a file is the one it speaks of.

    {"format": 2, "kind": "full", "update": 1200,
     "files": {"model.safetensors": {"bytes": 8, "sha256": "9f86..."}, "state.json": {"bytes": 2, "sha256": "4413..."}},
     "weights": {"trained": ["model.safetensors"]},
     "sha256": "..."}

The last is the digest of all before it. Where several ranks write a state, each has a file of its own, such as
`model-rank0003.safetensors` with `"rank": 3`, and `slices` says for each tensor that lies in several of them how they
make it: `{"weight": [{"file": "model-rank0000.safetensors", "dim": 0, "offset": 0, "shape": [4, 8]}, ...]}`.

Nothing else knows how a manifest is written down. Format 1, of version 0.1.0, is read too.
"""

import hashlib
import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from shoestring.checkpoint.files import read_json, regular_bytes, sha256
from shoestring.errors import CheckpointError

FORMAT = 2
MANIFEST = "manifest.json"
STATE = "state.json"
TRAINED = "trained"
"""The set of weights that training goes on from."""

Kind = Literal["full", "weights"]

FILE = r"[a-z_]{1,64}(?:-rank(?P<rank>[0-9]{4}))?\.safetensors|state\.json|adapter_config\.json"
"""What a file of a set may be called, as a regular expression."""
_FILE = re.compile(FILE)
_SET = re.compile(r"[a-z_]{1,64}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_MOST = 2**63 - 1
_MOST_DIMS = 64
_LONGEST_NAME = 4096


class Damaged(Exception):  # noqa: N818  (a finding about a file, turned into an event or an error by the caller)
    def __init__(self, file: str, why: str) -> None:
        super().__init__(file, why)
        self.file, self.why = file, why


@dataclass(frozen=True, kw_only=True)
class FileEntry:
    """A file as it was written."""

    bytes: int
    sha256: str
    rank: int | None = None
    """Of the process that wrote it, where there were several."""

    def __post_init__(self) -> None:
        _count(self.bytes, "bytes")
        if not isinstance(self.sha256, str) or not _DIGEST.fullmatch(self.sha256):
            raise ValueError(f"sha256 is {_shown(self.sha256)}, which is no digest")
        if self.rank is not None:
            _count(self.rank, "rank", most=9999)

    @classmethod
    def written(cls, path: Path, digest: str) -> "FileEntry":
        """Of a file that was just written and has this SHA-256. Raises OSError."""
        return cls(bytes=path.stat().st_size, sha256=digest)


@dataclass(frozen=True, kw_only=True)
class Slice:
    """The part of a tensor that a file has: `shape`, from `offset` on along `dim`."""

    file: str
    dim: int
    offset: int
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.shape) > _MOST_DIMS:
            raise ValueError(f"a slice has {len(self.shape)} dimensions")
        for size in self.shape:
            _count(size, "shape")
        _count(math.prod(self.shape), "the product of shape")
        _count(self.offset, "offset")
        _count(self.dim, "dim", most=max(0, len(self.shape) - 1))

    @property
    def length(self) -> int:
        """Along `dim`; a single number has one of itself."""
        return self.shape[self.dim] if self.shape else 1

    @property
    def others(self) -> tuple[int, ...]:
        """The sizes along all other dimensions."""
        return self.shape[: self.dim] + self.shape[self.dim + 1 :]


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A set of files that belong together. Raises ValueError, saying which of its parts do not."""

    kind: Kind
    """Whether it is a full checkpoint or weights alone."""
    update: int | None
    """That it was saved at; of weights it may be unknown."""
    files: Mapping[str, FileEntry]
    weights: Mapping[str, tuple[str, ...]]
    """Which files each set of weights consists of, the trained ones or others beside them."""
    slices: Mapping[str, tuple[Slice, ...]] = field(default_factory=dict)
    """By tensor: those that make up the whole of it, for tensors of which no file has all."""

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ValueError(f"kind is {_shown(self.kind)}")
        if self.update is not None:
            _count(self.update, "update")
        elif self.kind == "full":
            raise ValueError("update is missing")
        for name, entry in self.files.items():
            _check_name(name, entry)
        if self.kind == "full" and STATE not in self.files:
            raise ValueError(f"files has no {STATE}")
        if self.kind == "weights" and TRAINED not in self.weights:
            raise ValueError(f"weights has no {TRAINED!r}")
        for name, members in self.weights.items():
            if not _SET.fullmatch(name) or not members:
                raise ValueError(f"weights has {_shown(name)}: {_shown(list(members))}")
            _check_members(f"weights {name!r}", members, self.files)
        for name, slices in self.slices.items():
            if not 0 < len(name) <= _LONGEST_NAME:
                raise ValueError(f"slices has a tensor {_shown(name)}")
            _check_members(f"slices of {_shown(name)}", [piece.file for piece in slices], self.files)
            _check_cover(name, slices)

    def text(self) -> str:
        """As it is written down."""
        return json.dumps(signed(self._as_json()), indent=1)

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
            "files": files,
            "weights": {name: list(members) for name, members in self.weights.items()},
            **({"slices": slices} if slices else {}),
        }


def parse(value: Any, folder: Path) -> Manifest:
    """The manifest that was written down as `value`; `folder` is where it lies.

    Raises Damaged where it is none, and CheckpointError for a format of another version.
    """
    unsigned = dict(value) if isinstance(value, dict) else {}
    digest = unsigned.pop("sha256", None)
    if digest is None or digest != _digest(unsigned):
        raise Damaged(MANIFEST, "its bytes are not those that were written")
    form = unsigned.pop("format", None)
    known = _READERS.get(form) if type(form) is int else None
    if known is None:
        raise CheckpointError(
            f"{folder} is of format {str(form)[:20]}, this version reads 1 to {FORMAT}",
            hint="continue with the version of shoestring that wrote it",
        )
    try:
        return known(unsigned)
    except ValueError as error:
        raise Damaged(MANIFEST, f"it does not describe this checkpoint: {error}") from error


def load(folder: Path) -> Manifest:
    """As `parse`, of the manifest in `folder`. Raises OSError too."""
    try:
        return parse(read_json(folder / MANIFEST), folder)
    except (ValueError, RecursionError) as error:
        raise Damaged(MANIFEST, f"it cannot be read: {error}") from error


def read_manifest(folder: Path) -> Manifest:
    """As `load`; one that the system does not let us read is Damaged too."""
    try:
        return load(folder)
    except OSError as error:
        raise Damaged(MANIFEST, f"it cannot be read: {error}") from error


def difference(path: Path, entry: FileEntry) -> str:
    """What keeps a file from being the one that was written; nothing where it is. Raises OSError."""
    try:
        size = regular_bytes(path)
    except ValueError as error:
        return f"it cannot be read: {error}"
    if size != entry.bytes:
        return f"it has {size} bytes, {entry.bytes} were written"
    return "" if sha256(path) == entry.sha256 else "its bytes are not those that were written"


def verify_file(path: Path, entry: FileEntry) -> None:
    """Raises Damaged where a file is not the one that was written."""
    try:
        why = difference(path, entry)
    except FileNotFoundError:
        why = "it is not there"
    except OSError as error:
        why = f"it cannot be read: {error}"
    if why:
        raise Damaged(path.name, why)


def signed(manifest: dict[str, Any]) -> dict[str, Any]:
    """`manifest` with the SHA-256 of all that stands in it."""
    return {**manifest, "sha256": _digest(manifest)}


def _digest(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _format_1(value: dict[str, Any]) -> Manifest:
    """Of a full checkpoint, which was the only kind."""
    _check_keys(value, "the manifest", {"update", "files"})
    files = _files(value["files"])
    model = "model.safetensors"
    return Manifest(
        kind="full", update=value["update"], files=files, weights={TRAINED: (model,)} if model in files else {}
    )


def _format_2(value: dict[str, Any]) -> Manifest:
    _check_keys(value, "the manifest", {"kind", "update", "files", "weights"}, {"slices"})
    weights, slices = _object(value["weights"], "weights"), _object(value.get("slices", {}), "slices")
    return Manifest(
        kind=value["kind"],
        update=value["update"],
        files=_files(value["files"]),
        weights={
            name: tuple(_text(file, "a file of weights") for file in _list(members, f"weights {_shown(name)}"))
            for name, members in weights.items()
        },
        slices={
            name: tuple(_slice(piece) for piece in _list(pieces, f"slices of {_shown(name)}"))
            for name, pieces in slices.items()
        },
    )


_READERS = {1: _format_1, FORMAT: _format_2}


def _files(value: Any) -> dict[str, FileEntry]:
    files = {}
    for name, entry in _object(value, "files").items():
        _check_keys(_object(entry, _shown(name)), _shown(name), {"bytes", "sha256"}, {"rank"})
        files[name] = FileEntry(**entry)
    return files


def _slice(value: Any) -> Slice:
    _check_keys(_object(value, "a slice"), "a slice", {"file", "dim", "offset", "shape"})
    shape = tuple(_list(value["shape"], "shape"))
    return Slice(file=_text(value["file"], "file"), dim=value["dim"], offset=value["offset"], shape=shape)


def _check_name(name: str, entry: FileEntry) -> None:
    match = _FILE.fullmatch(name)
    if not match:
        raise ValueError(f"no file of one is called {_shown(name)}")
    if match["rank"] and entry.rank not in (None, int(match["rank"])):
        raise ValueError(f"{name} is of rank {entry.rank}")


def _check_members(what: str, members: Sequence[str], files: Collection[str]) -> None:
    absent = [name for name in members if name not in files]
    if absent:
        raise ValueError(f"{what} names {_shown(absent[0])}, which files has not")
    if len(set(members)) < len(members):
        raise ValueError(f"{what} names a file twice")


def _check_cover(name: str, slices: Sequence[Slice]) -> None:
    """Whether the slices of a tensor, put side by side, make a whole one."""
    if (
        not slices
        or len({(piece.dim, piece.others) for piece in slices}) > 1
        or (len(slices) > 1 and not slices[0].shape)
    ):
        raise ValueError(f"slices of {_shown(name)} do not fit together")
    end = 0
    for piece in sorted(slices, key=lambda piece: (piece.offset, piece.length)):
        if piece.offset != end:
            raise ValueError(f"slices of {_shown(name)} {'leave a gap' if piece.offset > end else 'overlap'} at {end}")
        end += piece.length
    _count(end * math.prod(slices[0].others), f"the numbers of {_shown(name)}")


def _check_keys(value: dict[str, Any], what: str, needed: set[str], others: Collection[str] = ()) -> None:
    if missing := needed - value.keys():
        raise ValueError(f"{what} has no {min(missing)}")
    if more := value.keys() - needed - set(others):
        raise ValueError(f"{what} has {_shown(min(more))}, which is not of this format")


def _count(value: Any, what: str, most: int = _MOST) -> None:
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"{what} is {_shown(value)}")


def _object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{what} is no object")
    return value


def _list(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{what} is no list")
    return value


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{what} is {_shown(value)}")
    return value


def _shown(value: object) -> str:
    return repr(value)[:40]
