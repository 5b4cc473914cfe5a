"""Buffers of a model whose update is computed in logical shards.

Each shard starts from the buffers before the update. After it, running statistics of norms are the mean of those of the
shards, and every other buffer is that of the first shard.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from shoestring.techniques import norms
from shoestring.techniques.slots import buffers, set_buffer
from shoestring.training.engine.buffers import BufferBackup
from shoestring.training.engine.parallel.ranks import Ranks

_UNCHANGED, _WRITTEN, _REPLACED, _RESHAPED = range(4)
"""What the first shard has done to a buffer: written to it, replaced it by a tensor like it, or by another value, such
as a tensor in other memory."""


class ShardBuffers:
    """The buffers of a model during an update."""

    def __init__(self, model: nn.Module, ranks: Ranks, device: torch.device) -> None:
        self._backup, self._ranks = BufferBackup(model, complete=True), ranks
        slots = [(module, name) for module in model.modules() for name in buffers(module)]
        self._running = [slot for slot in slots if _is_running_statistic(*slot)]
        self._other_slots = [slot for slot in slots if not _is_running_statistic(*slot)]
        self._device = device  # that of the weights which are not offloaded
        self._has_shard = False
        self._initial: list[tuple[Tensor | None, int]] = []
        self._changes: list[int] = []
        self._values: list[Tensor | None] = []
        """The buffers other than running statistics, as the first shard has left them."""

    @property
    def running(self) -> list[Tensor]:
        """The running statistics of the norms."""
        return [tensor for slot in self._running if (tensor := _tensor(*slot)) is not None]

    @property
    def count_of_others(self) -> int:
        """The number of buffers that are no running statistics."""
        return len(self._other_slots)

    @property
    def changes(self) -> list[int]:
        """What the first shard, if it is of this process, has done to each of the other buffers; 0 for nothing."""
        return self._changes

    def begin_update(self) -> None:
        """Save the buffers before the update."""
        self._backup.save()
        self._has_shard = False
        self._initial = [(tensor, _version(tensor)) for tensor in (_tensor(*slot) for slot in self._other_slots)]
        self._changes = [_UNCHANGED] * len(self._other_slots)
        self._values = [None] * len(self._other_slots)

    def begin_shard(self) -> None:
        """Restore the buffers before the update."""
        if self._has_shard:
            self._backup.restore()
        self._has_shard = True

    def end_shard(self, shard: int) -> list[Tensor | None]:
        """Return the running statistics after a shard."""
        if shard == 0:
            tensors = [_tensor(*slot) for slot in self._other_slots]
            self._changes = [_change(*initial, tensor) for initial, tensor in zip(self._initial, tensors, strict=True)]
            self._values = [
                tensor.clone() if change and tensor is not None else None
                for tensor, change in zip(tensors, self._changes, strict=True)
            ]
        return [tensor.clone() for tensor in self.running]

    @torch.no_grad()
    def end_update(self, sums: Sequence[Tensor | None], shards: int, changes: Sequence[float]) -> None:
        """Set the buffers after the update, from the `sums` of the running statistics of all `shards` with samples.

        `changes` says what the first shard has done to each of the other buffers, on whatever rank.
        """
        self._backup.restore()
        for tensor, total in zip(self.running, sums, strict=True):
            assert total is not None
            mean = total / shards
            if shards & (shards - 1):  # the mean of equal values would be rounded
                mean = torch.where(total == _sum_of_equal(tensor, shards), tensor, mean)
            tensor.copy_(mean)
        for slot, value, change in zip(self._other_slots, self._values, changes, strict=True):
            if change != _UNCHANGED:
                self._set_value(*slot, value, int(change))

    def _set_value(self, module: nn.Module, name: str, value: Tensor | None, change: int) -> None:
        """Set a buffer on all ranks to its `value` on the first one."""
        current = _tensor(module, name)
        if change == _RESHAPED:
            layout = self._ranks.share(lambda: None if value is None else _layout(value))
            if value is None and layout:
                shape, dtype, is_on_host = layout
                device = torch.device("cpu") if is_on_host else self._device
                value = torch.empty(shape, dtype=getattr(torch, dtype), device=device)
        elif value is None and current is not None:
            value = torch.empty_like(current)
        if value is not None:
            value = value.contiguous()
            self._ranks.broadcast(value.reshape(-1).view(torch.uint8))  # backends do not know every type
        if change == _WRITTEN and current is not None and value is not None:
            current.copy_(value)  # the same tensor may be a buffer of several modules
        else:
            set_buffer(module, name, value)


def _change(initial: Tensor | None, version: int, tensor: Tensor | None) -> int:
    if tensor is initial and _version(tensor) == version:
        return _UNCHANGED
    if initial is None or tensor is None or _layout(initial) != _layout(tensor):
        return _RESHAPED
    return _WRITTEN if tensor is initial else _REPLACED


def _layout(tensor: Tensor) -> list[Any]:
    """Return the shape, the type and whether the tensor is in host memory, from which other ranks can allocate it."""
    return [list(tensor.shape), str(tensor.dtype).removeprefix("torch."), tensor.device.type == "cpu"]


def _sum_of_equal(value: Tensor, count: int) -> Tensor:
    """Return the sum of `count` equal values, rounded as in the tree of the shards."""
    power = 1 << (count.bit_length() - 1)
    total = value * power
    return total if power == count else total + _sum_of_equal(value, count - power)


def _is_running_statistic(module: nn.Module, name: str) -> bool:
    tensor = _tensor(module, name)
    return isinstance(module, norms.RUNNING) and tensor is not None and tensor.is_floating_point()


def _tensor(module: nn.Module, name: str) -> Tensor | None:
    return buffers(module)[name]


def _version(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor._version
