"""A checkpoint's state, read a section at a time from files that are mapped into memory rather than loaded."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import safetensors
from torch import Tensor

from shoestring.checkpoint import codec
from shoestring.checkpoint.files import read_json
from shoestring.checkpoint.manifest import Damaged, verify
from shoestring.errors import CheckpointError

_Value = TypeVar("_Value")


def sections(folder: Path, update: int) -> Mapping[str, Any]:
    """The state in `folder`, the checkpoint of `update`: every byte was held against the manifest, and every section
    can be put together.

    Raises Damaged where that is not so.
    """
    files = verify(folder, update)
    try:
        skeletons = read_json(folder / "state.json")
    except (OSError, ValueError) as error:
        raise Damaged("state.json", f"it cannot be read: {error}") from error
    if not isinstance(skeletons, dict) or not files - {"state.json"} <= {f"{name}.safetensors" for name in skeletons}:
        raise Damaged("state.json", "it is not the state of these files")
    for name, skeleton in skeletons.items():
        path = folder / f"{name}.safetensors" if f"{name}.safetensors" in files else None
        try:
            codec.unpack(skeleton, dict.fromkeys(_names(path)))
        except CheckpointError as error:
            raise Damaged("state.json", f"{name}: {error.message[:200]}") from error
    return _Sections(folder, skeletons, files)


class _Sections(Mapping[str, Any]):
    def __init__(self, folder: Path, skeletons: dict[str, Any], files: set[str]) -> None:
        self._folder, self._skeletons, self._files = folder, skeletons, files

    def __getitem__(self, name: str) -> Any:
        skeleton, file = self._skeletons[name], f"{name}.safetensors"
        return codec.unpack(skeleton, _Mapped(self._folder / file) if file in self._files else {})

    def __iter__(self) -> Iterator[str]:
        return iter(self._skeletons)

    def __len__(self) -> int:
        return len(self._skeletons)


class _Mapped(Mapping[str, Tensor]):
    """The tensors of a file, each made of the file's own pages when it is asked for."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = _opened(path, lambda: _open(path))
        self._names = set(self._file.keys())

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._names:
            raise KeyError(name)
        tensor: Tensor = _opened(self._path, lambda: self._file.get_tensor(name))
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _names(path: Path | None) -> list[str]:
    if path is None:
        return []
    try:
        return list(_Mapped(path))
    except CheckpointError as error:
        raise Damaged(path.name, error.message) from error


def _open(path: Path) -> Any:
    return safetensors.safe_open(path, framework="pt")


def _opened(path: Path, read: Callable[[], _Value]) -> _Value:
    try:
        return read()
    except (OSError, ValueError, RuntimeError, TypeError, safetensors.SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
