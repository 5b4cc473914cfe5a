"""Compilers: run, explained if they fail, and ended with the process that started them."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from shoestring.base.errors import RunError
from shoestring.planning.simulator import compile_guard

_GUARD_SECONDS = 10.0
_groups: list[int] = []
"""The process group of the compilers, while there is one."""


@contextmanager
def compiling(folder: Path) -> Iterator[None]:
    """Let no compiler run on when the body is left, also by Ctrl-C, nor after the death of this process.

    In that case `folder`, in which they write, is removed.
    """
    guard = subprocess.Popen(
        [sys.executable, "-I", "-S", compile_guard.__file__, str(folder)], stdin=subprocess.PIPE, process_group=0
    )
    _groups.append(guard.pid)
    try:
        yield
    except BaseException:
        stop_compilers()
        raise
    finally:
        _groups.remove(guard.pid)
        with suppress(OSError, subprocess.TimeoutExpired):
            guard.communicate(b"done\n", timeout=_GUARD_SECONDS)


def stop_compilers() -> None:
    """End those that run."""
    for group in _groups:
        with suppress(OSError):
            os.killpg(group, signal.SIGKILL)


def run(command: Sequence[str], failure: str) -> str:
    """Run a program and return its output.

    Raises RunError with the first lines of its messages, and OSError if there is no space on a disk.
    """
    result = subprocess.run(
        command,
        capture_output=True,
        text=True,
        errors="replace",
        stdin=subprocess.DEVNULL,
        process_group=_groups[-1] if _groups else None,
    )
    if result.returncode:
        if "No space left on device" in result.stderr:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        lines = [line for line in result.stderr.splitlines() if "error" in line.lower() or "undefined" in line]
        name = Path(command[0]).name
        # The system ends the compiler proper, and the program that was called says so.
        was_killed = result.returncode < 0 or "Killed signal" in result.stderr
        hint = f"{name} ended with status {result.returncode}; another compiler: CXX=/path/to/g++"
        raise RunError(
            failure,
            problems=[line.strip()[:300] for line in (lines or result.stderr.splitlines())[:5]],
            hint=f"{name} was killed; a source file needs about 1 GB of memory" if was_killed else hint,
        )
    return result.stdout
