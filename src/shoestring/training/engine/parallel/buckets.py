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

    def allocate(self, tensors: Iterable[Tensor], *, for_any_values: bool = False) -> None:
        """Allocate the buckets for tensors of these types and sizes. The exchange itself allocates nothing.

        `for_any_values`: also for `add_any_values`, in which a bucket stands for a piece of a large tensor.
        """
        self.free()
        if self._ranks.size == 1:
            return
        sizes: dict[torch.dtype, int] = {}
        large, small = split_by_size(tensors, self._device.type)
        for tensor in small:
            sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.numel()
        for tensor in large if for_any_values else ():
            sizes[tensor.dtype] = max(sizes.get(tensor.dtype, 0), tensor.numel())
        self._flat = {
            dtype: torch.empty(min(size, BUCKET // dtype.itemsize), dtype=dtype, device=self._device)
            for dtype, size in sizes.items()
        }

    @torch.no_grad()
    def add(self, tensors: Sequence[Tensor]) -> None:
        """Add the tensors of all ranks in place, and free the buckets."""
        self._exchange(tensors, self._ranks.add)
        self.free()

    def messages(self, tensors: Sequence[Tensor]) -> list[list[int]]:
        """Return the positions of the tensors that are exchanged together: a large one by itself, small ones of one
        type. Messages are in the order of their last tensors.
        """
        messages: list[list[int]] = []
        filling: dict[torch.dtype, list[int]] = {}
        sizes: dict[torch.dtype, int] = {}
        for position, tensor in enumerate(tensors):
            if split_by_size([tensor], self._device.type)[0]:
                messages.append([position])
                continue
            kind = tensor.dtype
            if kind in filling and sizes[kind] + tensor.nbytes > BUCKET:
                messages.append(filling.pop(kind))
            filling.setdefault(kind, []).append(position)
            sizes[kind] = tensor.nbytes + (sizes[kind] if len(filling[kind]) > 1 else 0)
        return sorted([*messages, *filling.values()], key=lambda message: message[-1])

    @torch.no_grad()
    def add_message(self, tensors: Sequence[Tensor]) -> None:
        """Add the tensors of all ranks in place, one of the `messages`."""
        self._exchange(tensors, self._add_pieces)

    @torch.no_grad()
    def add_any_values(self, tensors: Sequence[Tensor]) -> None:
        """Take part in `add_message` of the other ranks, who will not use the sums of tensors like these."""
        large, small = split_by_size(tensors, self._device.type)
        for tensor in large:
            for piece in _pieces(tensor):
                self._ranks.add(self._flat[tensor.dtype][: len(piece)])
        if small:
            self._ranks.add(self._flat[small[0].dtype][: sum(tensor.numel() for tensor in small)])

    def _add_pieces(self, *tensors: Tensor) -> None:
        self._ranks.add(*(piece for tensor in tensors for piece in _pieces(tensor)))

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


def _pieces(tensor: Tensor) -> Sequence[Tensor]:
    """Return the pieces of a flat tensor that are no larger than a bucket."""
    pieces: Sequence[Tensor] = tensor.split(BUCKET // tensor.dtype.itemsize)
    return pieces
