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
    if not buffer.nbytes:
        return True
    if not lock_pages(buffer):
        return False
    weakref.finalize(buffer.untyped_storage(), _unpin, buffer.data_ptr()).atexit = False
    return True


def lock_pages(memory: Tensor) -> bool:
    """Lock the pages for copies from a GPU, until `cudaHostUnregister` is called; return whether CUDA permits that."""
    # The result is an enumeration without a truth value of its own: `not success` is False.
    if int(torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes, 0)) == 0:
        return True
    _forget_error()
    return False


def _forget_error() -> None:
    """CUDA reports an error of this thread once more, at the next kernel, and forgets it then."""
    with contextlib.suppress(RuntimeError):
        torch.zeros(1, device="cuda")


def _unpin(address: int) -> None:
    with contextlib.suppress(RuntimeError):
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaHostUnregister(address)
