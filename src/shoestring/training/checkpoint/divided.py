"""Tensors of which each rank of a run has some rows, as FSDP2 divides parameters, gradients and optimizer states."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rows:
    """Consecutive rows of a tensor."""

    first: int
    count: int


class Pieces:
    """A saved tensor whose rows are in several files."""

    def __init__(self, pieces: Mapping[int, Tensor], dim: int = 0) -> None:
        """`pieces` are the parts along `dim` by their first position there, in order."""
        self._pieces, self._dim = pieces, dim

    def whole(self) -> Tensor:
        """Return the whole tensor, in new memory."""
        return torch.cat(list(self._pieces.values()), self._dim)

    @property
    def shape(self) -> torch.Size:
        sizes = [piece.shape for piece in self._pieces.values()]
        shape = list(sizes[0])
        shape[self._dim] = sum(size[self._dim] for size in sizes)
        return torch.Size(shape)

    def narrow(self, rows: Rows) -> Tensor:
        """Return these rows, without reading others."""
        if self._dim:
            return self.whole().narrow(0, rows.first, rows.count)
        parts = []
        for first, piece in self._pieces.items():
            start, end = max(rows.first, first), min(rows.first + rows.count, first + len(piece))
            if start < end:
                parts.append(piece[start - first : end - first])
        return torch.cat(parts) if parts else next(iter(self._pieces.values()))[:0]


def is_divided(tensor: object) -> bool:
    """Return whether this process has only some rows of the tensor, as a `DTensor`."""
    module = sys.modules.get("torch.distributed.tensor")  # a DTensor exists only if it is imported
    return module is not None and isinstance(tensor, module.DTensor)


def own(tensor: Any) -> Tensor:
    """Return the rows of this process, in their memory; all of a tensor that is not divided."""
    rows: Tensor = tensor.to_local() if is_divided(tensor) else tensor
    return rows


def whole(tensor: Any) -> Tensor:
    """Return the whole tensor, on the device. All ranks must call this for a divided one."""
    complete: Tensor = tensor.full_tensor() if is_divided(tensor) else tensor
    return complete


def ranks_of(tensor: Any) -> int:
    """Return the number of ranks among which a tensor is divided."""
    return tensor.device_mesh.size() if is_divided(tensor) else 1


def rows_by_rank(size: int, ranks: int) -> list[Rows]:
    """Return the rows of each rank of a tensor with `size` rows: as equal as `torch.chunk` makes them."""
    share = -(-size // ranks)
    return [Rows(first := min(rank * share, size), min(share, size - first)) for rank in range(ranks)]


def divide_as(saved: Any, example: Any) -> Any:
    """Return a saved tensor divided as `example` is, if their shapes are equal. Any other value is returned whole."""
    if not is_divided(example) or tuple(saved.shape) != tuple(example.shape):
        return assembled(saved)
    mesh = example.device_mesh
    rows = rows_by_rank(example.shape[0], mesh.size())[mesh.get_local_rank()]
    local = saved.narrow(rows) if isinstance(saved, Pieces) else saved[rows.first : rows.first + rows.count]
    # Made like the example: `from_local` would move rows in host memory to the device of the mesh.
    divided = torch.empty_like(example.detach(), dtype=local.dtype)
    own(divided).copy_(local)
    return divided


def assembled(value: Any) -> Any:
    """Return a saved value whose tensors are whole."""
    return value.whole() if isinstance(value, Pieces) else value
