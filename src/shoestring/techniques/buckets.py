"""How tensors are divided among messages of a limited size, in the engine and in its traces."""

from collections.abc import Iterable, Iterator

from torch import Tensor

from shoestring.base.units import MIB

BUCKET = 25 * MIB
"""The largest message of copied tensors, as in torch's DistributedDataParallel. A larger one needs more memory, and
gains nothing."""

_OWN_MESSAGE_BYTES = {"cpu": MIB, "cuda": 10 * MIB, "simulated": 10 * MIB}
"""The smallest tensor that is a message of its own. From about this size, copying it into a bucket and back takes
longer than another message: on a T4, the latency of 0.14 ms (`planning/estimate/exchange.py`) is that of copying 10
MiB."""


def split_by_size(tensors: Iterable[Tensor], device_type: str) -> tuple[list[Tensor], list[Tensor]]:
    """Return the tensors that are messages of their own, as flat views, and those that share messages."""
    limit = _OWN_MESSAGE_BYTES.get(device_type, BUCKET)
    large, small = [], []
    for tensor in tensors:
        if tensor.nbytes >= limit:
            large.append(_flat(tensor))
        else:
            small.append(tensor)
    return large, small


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

    A gradient has the strides of its parameter: elements in the order of the memory are the same in all processes.
    """
    return tensor.view(-1) if tensor.is_contiguous() else tensor.as_strided((tensor.numel(),), (1,))
