"""Buffers in host memory from which a GPU copies by itself, while the CPU and its own kernels go on."""

from __future__ import annotations

import contextlib
import mmap
import weakref

import torch
from torch import Tensor


def allocate(size: int) -> Tensor:
    """Return a buffer of pageable memory that begins at a page.

    It is shared with processes that this one forks, such as those that load data. Private pages that a GPU uses would
    be copied for each of them.
    """
    return torch.frombuffer(mmap.mmap(-1, max(size, 1)), dtype=torch.uint8)[:size]


def pin(buffer: Tensor) -> bool:
    """Let the GPU copy from the buffer asynchronously, until it is freed; return whether CUDA permits that.

    torch's `pin_memory` would round the size up to a power of two.
    """
    runtime = torch.cuda.cudart()
    address = buffer.data_ptr()
    if not buffer.nbytes:
        return True
    if int(runtime.cudaHostRegister(address, buffer.nbytes, 0)) != 0:
        return False
    weakref.finalize(buffer.untyped_storage(), _unpin, address).atexit = False
    return True


def _unpin(address: int) -> None:
    with contextlib.suppress(RuntimeError):
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaHostUnregister(address)
