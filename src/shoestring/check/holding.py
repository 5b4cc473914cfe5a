"""Who is at a run, asked without taking its lock and without writing into the run."""

import errno
import fcntl
import os
import re
from pathlib import Path

from shoestring.check.facts import Holding

_HOLDER = re.compile(r"pid (?P<pid>\d+) on (?P<node>\S+), begun (?P<begun>\d+)")


def look(run: Path) -> Holding:
    """The run's lock as it is now. On a file system without locks only what stands in the file is known."""
    try:
        descriptor = os.open(run / "lock", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return Holding(run=run, holder="", held=False, state="")
    try:
        holder = os.read(descriptor, 200).decode(errors="replace").strip()
        state = _state(holder)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            held = False
        except BlockingIOError:
            held = True
        except OSError as error:
            held = bool(holder and state) and error.errno is not errno.EBADF
        return Holding(run=run, holder=holder, held=held, state=state)
    finally:
        os.close(descriptor)


def _state(holder: str) -> str:
    """What the process is doing that wrote itself down; empty where it is of another machine or no more."""
    import psutil

    found = _HOLDER.fullmatch(holder)
    if not found or found["node"] != os.uname().nodename:
        return ""
    try:
        process = psutil.Process(int(found["pid"]))
        return str(process.status()) if int(process.create_time()) == int(found["begun"]) else ""
    except psutil.Error:
        return ""
