"""Memory of freed tensors, which the C library keeps and the operating system could use."""

import contextlib
import ctypes


def return_freed_memory() -> None:
    """Return the memory of freed tensors to the operating system, which glibc keeps between others that are in use."""
    with contextlib.suppress(AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)
