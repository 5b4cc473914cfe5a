"""While a process trains on a CPU, glibc keeps the memory that is freed, instead of returning it to the system.

torch allocates the tensors of a CPU with glibc's malloc. By default glibc returns large freed blocks to the kernel, and
in the next update the kernel has to provide and clear their pages again.

With freed memory kept, updates took 27% less time for `temporal` with size=tiny, 7 to 11% less for a ResNet-18 and 3
to 4% less for a small GPT-2. The other recipes with size=tiny hardly cause page faults, and took as long as before. The
peak of memory grew by up to 4% (`benchmarks/engine/malloc.py`). With blocks of any size kept, GPT-2 gained another 4%,
but gaps between large blocks of different sizes could not be returned.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from shoestring.base.units import MIB

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""From glibc's malloc.h."""
_MMAP_BYTES = 32 * MIB
"""The largest value that glibc accepts. Blocks from this size on that do not fit into memory that was kept are still
returned when they are freed, so gaps between large blocks do not add up."""
_NEVER = 2**31 - 1
_CHOSEN_BY_USER = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_", "GLIBC_TUNABLES")


@contextmanager
def keeping_freed_memory(device: torch.device) -> Iterator[None]:
    """Keep freed memory within the context if `device` is a CPU, and return it to the system at the end.

    Nothing changes with another C library, or if environment variables choose how glibc handles freed memory.
    """
    libc = _glibc() if device.type == "cpu" and not any(name in os.environ for name in _CHOSEN_BY_USER) else None
    if libc is None:
        yield
        return
    libc.mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
    libc.mallopt(_M_TRIM_THRESHOLD, _NEVER)
    try:
        yield
    finally:
        # A process that goes on, such as the kernel of a notebook, continues with the thresholds that glibc sets by
        # itself after a block of 32 MiB was freed; those of before are not known.
        libc.mallopt(_M_TRIM_THRESHOLD, 2 * _MMAP_BYTES)
        libc.malloc_trim(0)


def _glibc() -> Any:
    """Return the C library of this process if it has glibc's functions; musl and that of macOS have not."""
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "mallopt") and hasattr(libc, "malloc_trim") else None
