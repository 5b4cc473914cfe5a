"""Merged weights that are computed when they are written, so that at no time more than one of them is in memory.

transformers decides about names, files and tied weights, for which it needs the shapes of all weights. Instead of
values it is given memory that nobody has written to, of which the operating system has no page.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from shoestring.training.checkpoint.files import write_file
from shoestring.training.checkpoint.tensors import serialize


class UnwrittenWeights:
    """Weights whose values are computed when they are written."""

    def __init__(self) -> None:
        self._computations: dict[int, tuple[Tensor, Callable[[], Tensor]]] = {}
        """A stand-in, and what computes the value, by the stand-in's storage."""
        self._written: set[int] = set()

    def add(self, shape: torch.Size, dtype: torch.dtype, compute: Callable[[], Tensor]) -> Tensor:
        """Return a stand-in for the weight that `compute` returns, which has this shape and type."""
        buffer = mmap.mmap(-1, max(shape.numel() * dtype.itemsize, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        stand_in = torch.frombuffer(buffer, dtype=dtype, count=shape.numel()).view(shape)
        self._computations[_storage(stand_in)] = stand_in, compute
        return stand_in

    def save(self, model: Any, folder: Path) -> None:
        """Save a model of transformers, in which some weights are stand-ins; they have their values in the files alone.

        Of a model whose stored weights are not those in memory, but parts of them, the values are computed before. What
        the values were computed from is no longer referenced afterwards.
        """
        with _writing(self._write):
            model.save_pretrained(folder)
        if self._computations.keys() - self._written:
            self._fill(model)
            model.save_pretrained(folder)
        self._computations.clear()

    def _write(
        self, tensors: Mapping[str, Tensor], file: str | Path, metadata: Mapping[str, str] | None = None
    ) -> None:
        write_file(Path(file), serialize(tensors, metadata or {}, read=self._value))

    def _value(self, tensor: Tensor) -> Tensor:
        storage = _storage(tensor)
        if storage not in self._computations:
            return tensor
        stand_in, compute = self._computations[storage]
        if tensor.shape != stand_in.shape:  # a part of it: it is not written, and so all are computed
            return tensor
        self._written.add(storage)
        return compute()

    def _fill(self, model: nn.Module) -> None:
        for weight in model.parameters():
            weight.data = self._value(weight.data)


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


@contextmanager
def _writing(write: Callable[..., None]) -> Iterator[None]:
    """Let transformers write files of weights with `write`, called as `safetensors.torch.save_file`."""
    from transformers import modeling_utils

    library: Any = modeling_utils
    original = library.safe_save_file
    library.safe_save_file = write
    try:
        yield
    finally:
        library.safe_save_file = original
