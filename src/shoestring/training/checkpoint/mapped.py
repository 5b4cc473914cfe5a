"""The tensors of a safetensors file, mapped into memory rather than loaded."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import safetensors
from torch import Tensor

from shoestring.base.reading import open_file, regular_file_size

READ_ERRORS = (OSError, ValueError, RuntimeError, TypeError, safetensors.SafetensorError)
"""Exceptions raised on opening a file, or on reading a tensor from it, if the file is not in this format."""


class MappedFile(Mapping[str, Tensor]):
    """The tensors by name. Each access maps the tensor anew from the file: copy it to its destination, then drop it."""

    def __init__(self, path: Path) -> None:
        """Raises one of READ_ERRORS, also if `path` is not a regular file."""
        regular_file_size(path)
        file: Any = _open(path)
        self._file = file
        self._names = frozenset(file.keys())
        self.metadata: dict[str, str] = file.metadata() or {}

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._names:
            raise KeyError(name)
        tensor: Tensor = self._file.get_tensor(name)
        return tensor

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _open(path: Path) -> Any:
    try:
        os.fsencode(path).decode()
    except UnicodeDecodeError:  # safetensors takes no such path
        descriptor = open_file(path, follow=False)
        try:
            return safetensors.safe_open(f"/proc/self/fd/{descriptor}", framework="pt")
        finally:
            os.close(descriptor)  # the mapping remains
    return safetensors.safe_open(path, framework="pt")
