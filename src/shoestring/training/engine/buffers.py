"""A backup of a model's buffers from the start of an update, in case the update has to be repeated."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from shoestring.base.units import MIB
from shoestring.techniques import norms
from shoestring.techniques.slots import buffers, set_buffer
from shoestring.training.engine import foreach
from shoestring.training.engine.memory import HalfDoneError

SMALL = MIB
"""Bytes up to which a buffer is copied even if it never changes: statistics are small, tables and masks are not."""


@dataclass
class _Entry:
    module: nn.Module
    name: str
    tensor: Tensor
    version: int | None
    copy: Tensor | None = None


class BufferBackup:
    """Copies of running statistics and any other buffers that a forward changes.

    Small buffers, and those of normalizations, are copied for every update into memory that is allocated once. A large
    buffer is copied only after an update in which it changed: a table that never changes costs nothing, and a change is
    detected. (torch counts the in-place changes of a tensor, except those by its BatchNorm kernels. Without that count,
    all buffers are copied.)
    """

    def __init__(self, model: nn.Module, *, complete: bool = False) -> None:
        """A `complete` backup copies large buffers as well, whether or not they have ever changed."""
        self._complete = complete
        # Traversing a large model takes longer than copying its statistics, and its modules do not change.
        self._modules = [module for module in model.modules() if buffers(module)]
        self._entries: dict[tuple[int, str], _Entry] = {}
        self._empty: list[tuple[nn.Module, str]] = []
        """The buffers that are None, until a forward sets them."""

    def save(self) -> None:
        """Save the current buffers."""
        if self._modules:
            self._save()

    @torch.no_grad()
    def _save(self) -> None:
        previous_entries, self._entries = self._entries, {}
        self._empty = []
        for module in self._modules:
            for name, tensor in buffers(module).items():
                if tensor is None:
                    self._empty.append((module, name))
                    continue
                key = (id(module), name)
                previous = previous_entries.get(key)
                if previous is not None and previous.copy is not None and previous.tensor is tensor:
                    previous.version = _version(tensor)
                    self._entries[key] = previous
                    continue
                entry = _Entry(module, name, tensor, _version(tensor))
                if previous is not None and previous.copy is not None and _same_layout(previous.copy, tensor):
                    entry.copy = previous.copy
                elif (
                    self._complete
                    or isinstance(module, norms.RUNNING)
                    or tensor.nbytes <= SMALL
                    or entry.version is None
                    or (previous and _has_changed(previous, tensor))
                ):
                    entry.copy = torch.empty_like(tensor)
                self._entries[key] = entry
        _copy([(entry.copy, entry.tensor) for entry in self._entries.values() if entry.copy is not None])

    @torch.no_grad()
    def restore(self) -> None:
        """Restore the saved buffers.

        Raises HalfDoneError if a buffer changed that was not copied.
        """
        for module, name in self._empty:
            set_buffer(module, name, None)
        for entry in self._entries.values():
            set_buffer(entry.module, entry.name, entry.tensor)
            if entry.copy is None and _has_changed(entry, entry.tensor):
                raise HalfDoneError(
                    f"the buffer {entry.name} changed in an update that ran out of memory, and it was not copied",
                    hint="resume from the last checkpoint",
                )
        _copy([(entry.tensor, entry.copy) for entry in self._entries.values() if entry.copy is not None])


def _version(tensor: Tensor) -> int | None:
    """Return how often the tensor was written to.

    torch's count has a private name (2.10 to 2.13) and no public one; None if it is missing or the tensor has none.
    """
    try:
        return tensor._version
    except (AttributeError, RuntimeError):
        return None


def _has_changed(entry: _Entry, tensor: Tensor) -> bool:
    return tensor is not entry.tensor or entry.version is None or _version(tensor) != entry.version


def _same_layout(a: Tensor, b: Tensor) -> bool:
    return (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device)


def _copy(pairs: list[tuple[Tensor, Tensor]]) -> None:
    """Copy the second tensor of each pair into the first, in one kernel for each dtype and device."""
    groups: dict[tuple[torch.dtype, torch.device], list[tuple[Tensor, Tensor]]] = {}
    for destination, source in pairs:
        groups.setdefault((destination.dtype, destination.device), []).append((destination, source))
    for group in groups.values():
        foreach.copy([destination for destination, _ in group], [source for _, source in group])
