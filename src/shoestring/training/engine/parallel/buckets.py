"""Adding many tensors of all ranks in few messages: small ones are copied into flat buckets and back."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch
from torch import Tensor

from shoestring.techniques.buckets import BUCKET, fill, split_by_size
from shoestring.training.engine import foreach
from shoestring.training.engine.parallel.ranks import Ranks


class Buckets:
    """The memory of the messages, which exists while they are exchanged."""

    def __init__(self, device: torch.device, ranks: Ranks) -> None:
        self._device, self._ranks = device, ranks
        self._flat: dict[torch.dtype, Tensor] = {}

    def allocate(self, tensors: Iterable[Tensor]) -> None:
        """Allocate the buckets for tensors of these types and sizes. The exchange itself allocates nothing."""
        if self._ranks.size == 1:
            return
        sizes: dict[torch.dtype, int] = {}
        for tensor in split_by_size(tensors, self._device.type)[1]:
            sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.numel()
        self._flat = {
            dtype: torch.empty(min(size, BUCKET // dtype.itemsize), dtype=dtype, device=self._device)
            for dtype, size in sizes.items()
        }

    @torch.no_grad()
    def add(self, tensors: Sequence[Tensor]) -> None:
        """Add the tensors of all ranks in place, and free the buckets."""
        self._exchange(tensors, self._ranks.add)
        self.free()

    def free(self) -> None:
        """Free the buckets."""
        self._flat = {}

    @torch.no_grad()
    def broadcast(self, tensors: Sequence[Tensor], rank: int) -> None:
        """Replace the tensors by those of `rank`."""
        self._exchange(tensors, partial(self._ranks.broadcast, rank=rank))

    def _exchange(self, tensors: Sequence[Tensor], exchange: Callable[..., None]) -> None:
        large, small = split_by_size(tensors, self._device.type)
        exchange(*large)
        for dtype, flat in self._flat.items():
            for pieces in fill([tensor for tensor in small if tensor.dtype == dtype], len(flat)):
                size = sum(map(len, pieces))
                parts = list(flat[:size].split([len(piece) for piece in pieces]))
                foreach.copy(parts, pieces)
                exchange(flat[:size])
                foreach.copy(pieces, parts)
