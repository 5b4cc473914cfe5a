"""How tensors are divided among messages of a limited size, in the engine and in its traces."""

from collections.abc import Iterable, Iterator

from torch import Tensor

from shoestring.units import MIB

BUCKET = 25 * MIB
"""The largest message, as in torch's DistributedDataParallel. A larger one needs more memory, and gains nothing."""


def fill(tensors: Iterable[Tensor], size: int) -> Iterator[list[Tensor]]:
    """Yield flat pieces of the tensors, in their order, in groups of `size` elements."""
    pieces: list[Tensor] = []
    free = size
    for tensor in tensors:
        flat = _flat(tensor)
        while len(flat):
            piece, flat = flat[:free], flat[free:]
            pieces.append(piece)
            free -= len(piece)
            if not free:
                yield pieces
                pieces, free = [], size
    if pieces:
        yield pieces


def _flat(tensor: Tensor) -> Tensor:
    """Return a view of all elements in one dimension.

    A gradient has the strides of its parameter, so that elements in the order of the memory are the same on all ranks.
    """
    return tensor.view(-1) if tensor.is_contiguous() else tensor.as_strided((tensor.numel(),), (1,))
