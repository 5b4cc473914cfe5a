"""Ending a process when its parent dies, for any cause of death."""

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

_PR_SET_PDEATHSIG = 1
_POLL_SECONDS = 0.5
"""Between two checks for the parent on systems other than Linux."""


def exit_with_parent(parent: int) -> None:
    """Make this process end when its parent, of the process id `parent`, has ended.

    Linux kills it immediately when the thread that started it ends (prctl(2): PR_SET_PDEATHSIG). On other systems a
    thread polls for the parent, which it cannot do while other code holds Python's global interpreter lock.
    """
    prctl = _prctl()
    if prctl is None or prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        threading.Thread(target=_poll_parent, args=(parent,), daemon=True).start()
    elif os.getppid() != parent:
        os._exit(0)


def _prctl() -> Callable[[int, int], int] | None:
    """Return the system's function; None if it has none."""
    library: Any = ctypes.CDLL(None)
    function: Callable[[int, int], int] | None = getattr(library, "prctl", None)
    return function


def _poll_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_POLL_SECONDS)
    os._exit(0)
