"""Buffers in host memory, from which a GPU copies by itself while the CPU and its own kernels go on, or on a disk."""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
import weakref

import torch
from torch import Tensor

from shoestring.base.errors import RunError
from shoestring.base.units import bytes_text


def allocate(size: int) -> Tensor:
    """Return a buffer of pageable memory that begins at a page.

    It is shared with processes that this one forks, such as those that load data. Private pages that a GPU uses would
    be copied for each of them.
    """
    return torch.frombuffer(mmap.mmap(-1, max(size, 1)), dtype=torch.uint8)[:size]


def allocate_on_disk(size: int) -> Tensor:
    """Return a buffer that is a file in TMPDIR, of which the operating system has those pages in memory that fit.

    The file has no name, so that nothing remains of it, however the process ends. Raises RunError without disk space.
    """
    with tempfile.TemporaryFile(prefix="shoestring-streamed-") as file:
        try:
            # Without space a later write to the mapped memory would be a fatal signal.
            os.posix_fallocate(file.fileno(), 0, max(size, 1))
        except OSError as error:
            raise RunError(
                f"stream_from=disk: {tempfile.gettempdir()} has no space for the {bytes_text(size)} of a streamed "
                f"block: {error.strerror}",
                hint="set TMPDIR to a folder on a larger disk, or stream_from=host",
            ) from error
        return torch.frombuffer(mmap.mmap(file.fileno(), max(size, 1)), dtype=torch.uint8)[:size]


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
