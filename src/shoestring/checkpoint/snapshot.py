"""A state at one instant: a copy in host memory, which training cannot change while it is written."""

import itertools
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from shoestring.checkpoint import codec

_ALIGNED = 64  # bytes; torch aligns what it allocates to so many
_PIECE = 4 << 20  # bytes that a thread copies before it looks for more


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of a state: what JSON can say, and the tensors it names."""

    skeleton: Any
    tensors: dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A state as sections by name."""

    sections: dict[str, Section]
    arriving: tuple[torch.cuda.Event, ...] = ()
    """Of GPUs that may still be copying."""

    def wait(self) -> None:
        """Return when the tensors are what they are a copy of."""
        for event in self.arriving:
            event.synchronize()

    @property
    def bytes(self) -> int:
        """Of all tensors."""
        return sum(tensor.nbytes for section in self.sections.values() for tensor in section.tensors.values())


def snapshot(state: Mapping[str, Any]) -> Snapshot:
    """`state` as it is: its tensors are the ones that training goes on to change.

    Raises CheckpointError for a value that cannot be saved.
    """
    packed = {name: codec.pack(value) for name, value in state.items()}
    return Snapshot(
        sections={name: Section(skeleton=skeleton, tensors=tensors) for name, (skeleton, tensors) in packed.items()}
    )


class HostCopy:
    """Memory that holds a copy of a state, taken when it is first needed and used again for the next.

    It is as large as the state's tensors and at most 64 bytes for each of them. For tensors of a GPU its pages are
    locked, which copying at full speed needs; `cudaHostRegister` is asked for it because torch's own allocator of
    such memory rounds up to a power of two.
    """

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._locked = False

    def prepare(self, live: Snapshot) -> None:
        """Take the memory for states like `live` before it is needed: the system gives it page by page as it is first
        written, and that takes three times as long as the copy does.
        """
        tensors = _tensors(live)
        self._reserve(sum(_sizes(tensors)), lock=any(tensor.is_cuda for tensor in tensors))
        self._memory.zero_()

    def take(self, state: Mapping[str, Any], helper: Executor | None = None) -> Snapshot:
        """A copy of `state`; the copy before it must not be needed any more.

        On return training may go on to change the state: what is copied from a GPU comes there before whatever is
        asked of it next, and `wait` of the copy returns when it has come. `helper`, a thread that has nothing else to
        do, copies along where torch itself uses one thread, as torchrun has it: memory is faster than one core.

        Raises CheckpointError for a value that cannot be saved.
        """
        live = snapshot(state)
        tensors = _tensors(live)
        sizes = _sizes(tensors)
        devices = {tensor.device for tensor in tensors if tensor.is_cuda}
        self._reserve(sum(sizes), lock=bool(devices))
        copies = [
            self._memory[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            for tensor, start in zip(tensors, itertools.accumulate(sizes, initial=0), strict=False)
        ]
        pairs = list(zip(copies, (tensor.detach() for tensor in tensors), strict=True))
        if helper and not devices and torch.get_num_threads() == 1:
            pieces = iter([piece for pair in pairs for piece in _pieces(*pair)])
            helping = helper.submit(_copy, pieces)
            _copy(pieces)
            if not helping.cancel():  # it has begun
                helping.result()
        else:
            _copy(iter(pairs), non_blocking=self._locked)
        following = iter(copies)
        return Snapshot(
            sections={
                name: Section(skeleton=section.skeleton, tensors=dict(zip(section.tensors, following, strict=False)))
                for name, section in live.sections.items()
            },
            arriving=tuple(torch.cuda.current_stream(device).record_event() for device in devices),
        )

    def close(self) -> None:
        """Give the memory back."""
        if self._locked:
            torch.cuda.cudart().cudaHostUnregister(self._memory.data_ptr())
        self._locked = False
        self._memory = torch.empty(0, dtype=torch.uint8)

    def _reserve(self, size: int, *, lock: bool) -> None:
        if self._memory.nbytes == size and self._locked == lock:
            return
        self.close()
        self._memory = torch.empty(size, dtype=torch.uint8)
        # Where the system locks no more pages the copy is slower, not wrong.
        self._locked = lock and not torch.cuda.cudart().cudaHostRegister(self._memory.data_ptr(), size, 0)


def _copy(pairs: Iterator[tuple[Tensor, Tensor]], *, non_blocking: bool = False) -> None:
    """Copy each second into each first. Two threads may share `pairs`: a list's iterator gives each to one of them."""
    for to, tensor in pairs:
        to.copy_(tensor, non_blocking=non_blocking)


def _pieces(to: Tensor, tensor: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Both in parts that two threads can divide among themselves."""
    if tensor.nbytes <= _PIECE or not tensor.is_contiguous():
        yield to, tensor
        return
    size = _PIECE // tensor.element_size()
    yield from zip(to.view(-1).split(size), tensor.view(-1).split(size), strict=True)


def _tensors(state: Snapshot) -> list[Tensor]:
    return [tensor for section in state.sections.values() for tensor in section.tensors.values()]


def _sizes(tensors: list[Tensor]) -> list[int]:
    """Bytes of each in a copy."""
    return [-(-tensor.nbytes // _ALIGNED) * _ALIGNED for tensor in tensors]
