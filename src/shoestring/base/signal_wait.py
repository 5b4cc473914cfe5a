"""Waiting for signals that are blocked, in a process that may be stopped (Ctrl-Z, `docker pause`) while it waits."""

import ctypes
from collections.abc import Iterable

_SET_BYTES = 128
"""The size of `sigset_t` of glibc and musl."""


class _Seconds(ctypes.Structure):
    """`struct timespec`."""

    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def wait_for_signal(numbers: Iterable[int], seconds: float) -> int | None:
    """Return the first of these signals that arrives within so many seconds, or None. It may return None earlier.

    Not `signal.sigtimedwait`: in a process that was stopped until after the end of the wait, it returns a signal that
    nobody has sent, from memory that it has not written. An end that has passed already is a wait of 0 s.
    """
    library = ctypes.CDLL(None)
    awaited = ctypes.create_string_buffer(_SET_BYTES)
    library.sigemptyset(awaited)
    for number in numbers:
        library.sigaddset(awaited, int(number))
    whole, fraction = divmod(max(0.0, seconds), 1.0)
    duration = _Seconds(seconds=int(whole), nanoseconds=int(fraction * 1e9))
    received: int = library.sigtimedwait(awaited, None, ctypes.byref(duration))
    return received if received > 0 else None
