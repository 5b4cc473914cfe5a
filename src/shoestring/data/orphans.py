"""A process that does not outlive the one that started it, however that one dies."""

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

_PR_SET_PDEATHSIG = 1
_SECONDS = 0.5
"""Between two looks, where the system does not tell."""


def end_with(parent: int) -> None:
    """Have this process end when the one that started it, `parent`, is there no more.

    Linux kills it at once, when the thread that started it ends, whatever it is doing (prctl(2): PR_SET_PDEATHSIG).
    Elsewhere a thread looks for it, which cannot where other code holds Python's lock.
    """
    prctl = _prctl()
    if prctl is None or prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    elif os.getppid() != parent:
        os._exit(0)


def _prctl() -> Callable[[int, int], int] | None:
    """The system's own function; None where it has none."""
    library: Any = ctypes.CDLL(None)
    function: Callable[[int, int], int] | None = getattr(library, "prctl", None)
    return function


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_SECONDS)
    os._exit(0)
