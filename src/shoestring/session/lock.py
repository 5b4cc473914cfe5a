"""One process at a time at a run's directory."""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shoestring.errors import QuestionError

_WITHOUT = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}


@contextmanager
def locked(run: Path) -> Iterator[None]:
    """Hold the directory `run` for this process. The system lets go of it when the process dies, however it dies.

    On a filesystem without locks (some that come over a network) the name of the holder is the lock; a holder of this
    machine that is dead does not count.

    Raises QuestionError, naming the holder, when another process is at it.
    """
    descriptor = os.open(run / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        holder = os.read(descriptor, 200).decode(errors="replace").strip()
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise _held(run, holder, "wait for it, stop it, or give another --run") from error
        except OSError as error:
            if error.errno not in _WITHOUT:
                raise
            if holder and not _is_dead(holder):
                raise _held(run, holder, f"wait for it or stop it; if it is gone, remove {run / 'lock'}") from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{_me()}\n".encode(), 0)
        try:
            yield
        finally:
            os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def _held(run: Path, holder: str, hint: str) -> QuestionError:
    return QuestionError(f"{run} is being trained by another process ({holder or 'unknown'})", hint=hint)


def _me() -> str:
    return f"pid {os.getpid()} on {os.uname().nodename}, begun {_begun(os.getpid())}"


def _begun(pid: int) -> int:
    """When a process began, in unix seconds: a later one may be given the same number. 0 for none."""
    import psutil

    try:
        return int(psutil.Process(pid).create_time())
    except psutil.Error:
        return 0


def _is_dead(holder: str) -> bool:
    """Whether the process that wrote itself down was one of this machine and is no more."""
    words = holder.replace(",", "").split()
    if len(words) != 6 or words[3] != os.uname().nodename or not (words[1] + words[5]).isdecimal():
        return False
    return _begun(int(words[1])) != int(words[5])
