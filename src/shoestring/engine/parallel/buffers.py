"""Buffers of a model whose update is computed in logical shards.

Each shard starts from the buffers before the update. After it, running statistics of norms are the mean of those of the
shards, and every other buffer is that of the first shard.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from shoestring.engine.buffers import BufferBackup
from shoestring.engine.parallel.ranks import Ranks
from shoestring.techniques import norms
from shoestring.techniques.slots import buffers, set_buffer


class ShardBuffers:
    """The buffers of a model during an update."""

    def __init__(self, model: nn.Module, ranks: Ranks) -> None:
        self._backup, self._ranks = BufferBackup(model, complete=True), ranks
        slots = [
            (module, name)
            for module in model.modules()
            for name, buffer in buffers(module).items()
            if buffer is not None
        ]
        self._running = [slot for slot in slots if _is_running_statistic(*slot)]
        self._other_slots = [slot for slot in slots if not _is_running_statistic(*slot)]
        self._has_shard = False
        self._initial: list[tuple[Tensor, int]] = []
        self._changed: list[Tensor | None] = []
        """The buffers other than running statistics that the first shard has changed."""

    @property
    def running(self) -> list[Tensor]:
        """The running statistics of the norms."""
        return [_tensor(*slot) for slot in self._running]

    @property
    def count_of_others(self) -> int:
        """The number of buffers that are no running statistics."""
        return len(self._other_slots)

    @property
    def changed(self) -> list[bool]:
        """Whether the first shard, if it is of this process, has changed each of the other buffers."""
        return [copy is not None for copy in self._changed]

    def begin_update(self) -> None:
        """Save the buffers before the update."""
        self._backup.save()
        self._has_shard = False
        self._initial = [(tensor, tensor._version) for tensor in (_tensor(*slot) for slot in self._other_slots)]
        self._changed = [None] * len(self._other_slots)

    def begin_shard(self) -> None:
        """Restore the buffers before the update."""
        if self._has_shard:
            self._backup.restore()
        self._has_shard = True

    def end_shard(self, shard: int) -> list[Tensor | None]:
        """Return the running statistics after a shard."""
        if shard == 0:
            tensors = [_tensor(*slot) for slot in self._other_slots]
            self._changed = [
                None if tensor is initial and tensor._version == version else tensor.clone()
                for tensor, (initial, version) in zip(tensors, self._initial, strict=True)
            ]
        return [tensor.clone() for tensor in self.running]

    @torch.no_grad()
    def end_update(self, sums: Sequence[Tensor | None], shards: int, changed: Sequence[bool]) -> None:
        """Set the buffers after the update, from the `sums` of the running statistics of all `shards` with samples.

        `changed` says which other buffers the first shard has changed, on whatever rank.
        """
        self._backup.restore()
        for tensor, total in zip(self.running, sums, strict=True):
            assert total is not None
            tensor.copy_(total / shards)
        for slot, copy, is_changed in zip(self._other_slots, self._changed, changed, strict=True):
            if is_changed:
                tensor = _tensor(*slot).clone() if copy is None else copy
                self._ranks.broadcast(tensor)
                set_buffer(*slot, tensor)


def _is_running_statistic(module: nn.Module, name: str) -> bool:
    return isinstance(module, norms.RUNNING) and _tensor(module, name).is_floating_point()


def _tensor(module: nn.Module, name: str) -> Tensor:
    tensor = buffers(module)[name]
    assert tensor is not None
    return tensor
