"""Processes: when this one started, how its threads wait, its end with its parent, and the end of another one with all
its descendants.
"""

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1
_POLL_SECONDS = 0.5
"""Between two checks for the parent on systems other than Linux."""

_SPINS = "GOMP_SPINCOUNT"
_FEW_SPINS = "10000"
"""Instead of 300,000, with which updates on a busy machine took up to 20 times as long. With 1,000, those of small
models take up to a quarter longer on an idle one (`benchmarks/engine/spinning.py`)."""


def limit_spinning() -> None:
    """Let waiting threads of GNU's OpenMP sleep soon, unless the environment tells how they wait.

    torch computes with them on a CPU. A thread that other processes keep from its processor holds up all others, and
    while these spin, they keep it from theirs. Only torch that is imported later waits so; child processes inherit it.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault(_SPINS, _FEW_SPINS)


def started_at(pid: int | None = None) -> float:
    """Return when a process started, by default this one, as a value of `time.monotonic()`.

    Linux counts the start in ticks of 10 ms since the machine started; psutil adds it to the time of that start, which
    it knows to a second, and which changes when the clock is set.
    """
    pid = pid or os.getpid()
    with suppress(OSError, ValueError, IndexError, AttributeError):
        # The second field, the name of the program in parentheses, may contain spaces.
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
        if 0 <= age < time.clock_gettime(time.CLOCK_BOOTTIME):
            return time.monotonic() - age
    import psutil

    return time.monotonic() - max(0.0, time.time() - float(psutil.Process(pid).create_time()))


def is_running(pid: int) -> bool:
    """Return whether there is such a process. One that has ended and that its parent has not noticed yet is none."""
    import psutil

    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True


def kill_with_descendants(pid: int) -> None:
    """Send SIGKILL to a process and to all processes that it has started, directly or indirectly.

    It is stopped first, so that it starts no other process meanwhile.
    """
    import psutil

    try:
        process = psutil.Process(pid)
        process.suspend()
        processes = [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for member in processes:
        with suppress(psutil.NoSuchProcess):
            member.kill()


def exit_with_parent(parent: int, *, poll: bool = False) -> None:
    """Make this process end when its parent, of the process id `parent`, has ended.

    Linux kills it immediately when the thread that started it ends (prctl(2): PR_SET_PDEATHSIG). On other systems, and
    with `poll`, for a process started by a thread that may end before the parent does, a thread polls for the parent,
    which it cannot do while other code holds Python's global interpreter lock.
    """
    prctl = None if poll else _prctl()
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
