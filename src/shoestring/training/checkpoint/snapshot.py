"""Snapshots of a training state: a copy in host memory that training cannot change while it is written to disk."""

import itertools
import mmap
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from shoestring.techniques.streaming.host_memory import lock_pages
from shoestring.training.checkpoint import codec
from shoestring.training.checkpoint.divided import is_divided, own, ranks_of

_ALIGNMENT = 64  # bytes; the alignment of torch's own allocations (gAlignment in c10/core/alignment.h)
_PIECE_BYTES = 4 << 20  # the unit of work of a copying thread


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of a state: its JSON skeleton, and the tensors that the skeleton names."""

    skeleton: Any
    tensors: dict[str, Tensor]
    """Of a tensor that is divided among ranks, the rows of this one."""
    divided: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """The whole shapes of the tensors that are divided."""
    ranks: int = 1
    """The number of ranks among which they are divided."""


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A state, divided into sections by name."""

    sections: dict[str, Section]
    copy_events: tuple[torch.cuda.Event, ...] = ()
    """One event per GPU, recorded after its last copy to the host; the copies may still be in progress."""

    def wait(self) -> None:
        """Wait until all copies from GPUs are complete."""
        for event in self.copy_events:
            event.synchronize()

    @property
    def bytes(self) -> int:
        """The total size of all tensors."""
        return sum(tensor.nbytes for section in self.sections.values() for tensor in section.tensors.values())


def snapshot(state: Mapping[str, Any]) -> Snapshot:
    """Return `state` as a snapshot without copying: its tensors are those that training changes.

    Raises CheckpointError for a value that cannot be saved.
    """
    packed = {name: codec.pack(value) for name, value in state.items()}
    return Snapshot(sections={name: _section(skeleton, tensors) for name, (skeleton, tensors) in packed.items()})


def _section(skeleton: Any, tensors: dict[str, Tensor]) -> Section:
    return Section(
        skeleton=skeleton,
        tensors={name: own(tensor) for name, tensor in tensors.items()},
        divided={name: tuple(tensor.shape) for name, tensor in tensors.items() if is_divided(tensor)},
        ranks=max(map(ranks_of, tensors.values()), default=1),
    )


class HostCopy:
    """A host memory buffer for a copy of a state, allocated on first use and reused for later copies.

    Its size is that of the state's tensors plus at most 64 bytes for each. For tensors on a GPU its pages are locked,
    which copying at full speed requires, with `cudaHostRegister`, because torch's own allocator of pinned memory
    rounds up to a power of two (`ATen/core/CachingHostAllocator.h`): 8 GiB for a state of 5. Processes that are forked,
    such as workers, do not get the buffer: the system would copy all locked pages for them, and on some systems move
    those of this process, while the GPU goes on writing to the old ones.
    """

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._for_gpu = False
        self._locked = False

    def prepare(self, live: Snapshot) -> None:
        """Allocate the buffer for states like `live` ahead of the first copy.

        The system maps memory page by page on first write, which takes three times as long as the copy itself.
        """
        tensors = _tensors(live)
        self._reserve(sum(_aligned_sizes(tensors)), for_gpu=any(tensor.is_cuda for tensor in tensors))
        self._memory.zero_()

    def take(self, state: Mapping[str, Any], helper: Executor | None = None) -> Snapshot:
        """Copy `state` and return the copy, which overwrites the previous one.

        Training may change the state as soon as this returns: copies from a GPU run before any work queued on it
        later, and `wait` of the copy returns when they are complete. `helper`, an idle thread, takes a part of the
        copying if torch itself uses only one thread, as under torchrun: one core does not saturate the memory.

        Raises CheckpointError for a value that cannot be saved.
        """
        live = snapshot(state)
        tensors = _tensors(live)
        sizes = _aligned_sizes(tensors)
        devices = {tensor.device for tensor in tensors if tensor.is_cuda}
        self._reserve(sum(sizes), for_gpu=bool(devices))
        copies = [
            self._memory[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            for tensor, start in zip(tensors, itertools.accumulate(sizes, initial=0), strict=False)
        ]
        pairs = list(zip(copies, (tensor.detach() for tensor in tensors), strict=True))
        if helper and not devices and torch.get_num_threads() == 1:
            pieces = iter([piece for pair in pairs for piece in _split_pair(*pair)])
            helper_task = helper.submit(_copy, pieces)
            _copy(pieces)
            if not helper_task.cancel():  # it has already started
                helper_task.result()
        else:
            _copy(iter(pairs), non_blocking=self._locked)
        remaining_copies = iter(copies)
        return Snapshot(
            sections={
                name: replace(section, tensors=dict(zip(section.tensors, remaining_copies, strict=False)))
                for name, section in live.sections.items()
            },
            copy_events=tuple(torch.cuda.current_stream(device).record_event() for device in devices),
        )

    def close(self) -> None:
        """Release the memory."""
        if self._locked:
            torch.cuda.synchronize()  # a copy that was interrupted by an error may still be in progress
            torch.cuda.cudart().cudaHostUnregister(self._memory.data_ptr())
        self._for_gpu = self._locked = False
        self._memory = torch.empty(0, dtype=torch.uint8)

    def _reserve(self, size: int, *, for_gpu: bool) -> None:
        if self._memory.nbytes == size and self._for_gpu == for_gpu:
            return
        self.close()
        self._memory = _host_memory(size)
        self._for_gpu = for_gpu
        # If the system cannot lock more pages, the copy is slower but still correct.
        self._locked = for_gpu and size > 0 and lock_pages(self._memory)


def _host_memory(size: int) -> Tensor:
    """Return zeros of `size` bytes that processes forked later do not have."""
    if not size:
        return torch.empty(0, dtype=torch.uint8)
    memory = mmap.mmap(-1, size)
    memory.madvise(mmap.MADV_DONTFORK)  # madvise(2) names this case: pages that a device writes to, and copy-on-write
    return torch.frombuffer(memory, dtype=torch.uint8)


def _copy(pairs: Iterator[tuple[Tensor, Tensor]], *, non_blocking: bool = False) -> None:
    """Copy the second tensor of each pair into the first.

    Two threads may share `pairs`: a list's iterator yields each pair to only one of them.
    """
    for destination, tensor in pairs:
        destination.copy_(tensor, non_blocking=non_blocking)


def _split_pair(destination: Tensor, tensor: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Split both tensors into corresponding pieces that two threads can share."""
    if tensor.nbytes <= _PIECE_BYTES or not tensor.is_contiguous():
        yield destination, tensor
        return
    size = _PIECE_BYTES // tensor.element_size()
    yield from zip(destination.view(-1).split(size), tensor.view(-1).split(size), strict=True)


def _tensors(state: Snapshot) -> list[Tensor]:
    return [tensor for section in state.sections.values() for tensor in section.tensors.values()]


def _aligned_sizes(tensors: list[Tensor]) -> list[int]:
    """Return the size in bytes of each tensor in a copy, rounded up to the alignment."""
    return [-(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT for tensor in tensors]
