"""The memory on the device that streamed blocks take turns in, and the copies to it.

A slot is allocated once. On a GPU a stream of its own copies, while the stream of the model computes; events order the
two, and the CPU waits for neither.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class Slot(Protocol):
    """Memory for one block at a time."""

    buffer: Tensor

    def fill(self, source: Tensor) -> None:
        """Start to copy `source` to the beginning of the buffer, once everything that uses it now is over."""

    def wait(self) -> None:
        """Let what is computed from now on wait for the copy."""


class PlainSlot:
    """A slot of a device whose copies are in order with its computation, such as a CPU."""

    def __init__(self, buffer: Tensor) -> None:
        self.buffer = buffer

    def fill(self, source: Tensor) -> None:
        self.buffer[: source.numel()].copy_(source)

    def wait(self) -> None:
        pass


class CudaSlot:
    """A slot of a GPU, with the stream that copies."""

    def __init__(self, buffer: Tensor, copying: torch.cuda.Stream) -> None:
        self.buffer = buffer
        self._copying, self._is_full = copying, torch.cuda.Event()
        self._users: dict[torch.cuda.Stream, torch.cuda.Event] = {}
        """The streams that have waited for the latest copy, each with an event for when it no longer uses the slot."""

    def fill(self, source: Tensor) -> None:
        self._users.setdefault(torch.cuda.current_stream(self.buffer.device), torch.cuda.Event())
        for user, is_over in self._users.items():
            is_over.record(user)
            self._copying.wait_event(is_over)
        self._users.clear()
        with torch.cuda.stream(self._copying):
            self.buffer[: source.numel()].copy_(source, non_blocking=True)
        self._is_full.record(self._copying)

    def wait(self) -> None:
        user = torch.cuda.current_stream(self.buffer.device)
        if user not in self._users:
            user.wait_event(self._is_full)
            self._users[user] = torch.cuda.Event()


def make_slots(sizes: list[int], device: torch.device) -> list[Slot]:
    """Allocate a slot of each size on the device."""
    buffers = [torch.empty(size, dtype=torch.uint8, device=device) for size in sizes]
    if device.type != "cuda":
        return [PlainSlot(buffer) for buffer in buffers]
    copying = torch.cuda.Stream(device)
    return [CudaSlot(buffer, copying) for buffer in buffers]
