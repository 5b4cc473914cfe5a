"""The holder of a run's lock, inspected without acquiring the lock and without writing to the run's directory."""

import errno
import fcntl
import os
import re
from pathlib import Path

from shoestring.base.process_identity import is_same_process
from shoestring.base.reading import open_file
from shoestring.runs.check.facts import RunLock
from shoestring.training.run_directory.contents import LOCK

_HOLDER = re.compile(r"pid (?P<pid>\d+) on (?P<node>\S+), begun (?P<started>\d+)(?:, process (?P<identity>\S+))?")


def inspect_lock(run: Path) -> RunLock:
    """Return the state of the run's lock. On a file system without locks it follows from the lock file alone."""
    try:
        descriptor = open_file(run / LOCK.name, follow=False)
    except (OSError, ValueError):
        return RunLock(run=run, holder="", locked=False, process_status="")
    try:
        # The second line names the parent of the holder.
        holder = os.read(descriptor, 200).decode(errors="replace").partition("\n")[0].strip()
        process_status = _process_status(holder)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            locked = False
        except BlockingIOError:
            locked = True
        except OSError as error:
            locked = bool(holder and process_status) and error.errno is not errno.EBADF
        return RunLock(run=run, holder=holder, locked=locked, process_status=process_status)
    finally:
        os.close(descriptor)


def _process_status(holder: str) -> str:
    """Return the status of the process named in the lock file; empty if it is on another machine or has ended."""
    import psutil

    match = _HOLDER.fullmatch(holder)
    if not match or match["node"] != os.uname().nodename:
        return ""
    try:
        process = psutil.Process(int(match["pid"]))
        if identity := match["identity"]:
            is_holder = is_same_process(process.pid, identity)
        else:
            is_holder = int(process.create_time()) == int(match["started"])
        return str(process.status()) if is_holder else ""
    except (psutil.Error, OverflowError):  # a number that cannot be the id of a process
        return ""
