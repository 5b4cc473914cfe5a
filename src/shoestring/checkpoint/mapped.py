"""The tensors of a safetensors file, mapped into memory rather than loaded."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import safetensors
from torch import Tensor

from shoestring.checkpoint.files import regular_bytes

UNREADABLE = (OSError, ValueError, RuntimeError, TypeError, safetensors.SafetensorError)
"""What opening a file, or taking a tensor from it, raises where the file is none of this format."""


class MappedFile(Mapping[str, Tensor]):
    """Each tensor is made of the file's own pages when it is asked for: copy it into its place and let go of it."""

    def __init__(self, path: Path) -> None:
        """Raises one of UNREADABLE, also for what is no regular file."""
        regular_bytes(path)
        file: Any = safetensors.safe_open(path, framework="pt")
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
