"""One process at a time at a run's directory."""

import errno
import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from shoestring.checkpoint.files import replace
from shoestring.errors import UsageError

_WITHOUT = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}


_descriptors: set[int] = set()
"""Descriptors of locks. A child that was forked has them too, and would hold the lock when this process is dead."""


def _let_go_in_child() -> None:
    while _descriptors:
        with suppress(OSError):
            os.close(_descriptors.pop())


os.register_at_fork(after_in_child=_let_go_in_child)


@contextmanager
def locked(run: Path) -> Iterator[None]:
    """Hold the directory `run` for this process. The system lets go of it when the process dies, however it dies.

    On a filesystem without locks (some that come over a network) a file that only one process can create is the lock,
    `.lock`. One that a dead process of this machine has left is taken over; whether one of another machine is dead
    nobody here can know, so a person has to remove it. Machines are told apart by their names: two containers of one
    name that share such a filesystem are not kept apart.

    Raises UsageError, naming the holder, when another process is at it.
    """
    descriptor = os.open(run / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    created = run / ".lock"
    without = False
    try:
        holder = os.read(descriptor, 200).decode(errors="replace").strip()
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise _held(run, holder, "wait for it, stop it, or give another --run") from error
        except OSError as error:
            if error.errno not in _WITHOUT:
                raise
            without = True
        if without:
            _create(run, created, holder)
        _descriptors.add(descriptor)
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{_me()}\n".encode(), 0)
            yield
        finally:
            os.ftruncate(descriptor, 0)
            if without:
                created.unlink(missing_ok=True)
    finally:
        _descriptors.discard(descriptor)
        os.close(descriptor)


def _create(run: Path, created: Path, holder: str) -> None:
    """Create the file that is the lock, or take it over from a dead process of this machine."""
    with _alone_here():
        if holder and not _is_dead(holder):
            raise _held(run, holder, f"wait for it or stop it; if it is gone, remove {run / 'lock'}")
        try:
            descriptor = os.open(created, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except FileExistsError as error:
            holder = created.read_text(errors="replace")[:200].strip()
            if not _is_dead(holder):
                raise _held(run, holder, f"wait for it or stop it; if it is gone, remove {created}") from error
            replace(created, lambda beside: beside.write_text(f"{_me()}\n"))
        else:
            with os.fdopen(descriptor, "w") as file:
                file.write(f"{_me()}\n")


@contextmanager
def _alone_here() -> Iterator[None]:
    """One process of this machine and user at a time: of several that find a dead holder only one takes over.

    The directory for temporary files is this machine's own and so has locks; where it has none either, nothing helps.
    """
    place = Path(tempfile.gettempdir()) / f"shoestring-{os.getuid()}.lock"
    descriptor = os.open(place, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _held(run: Path, holder: str, hint: str) -> UsageError:
    return UsageError(f"{run} is being trained by another process ({holder or 'unknown'})", hint=hint)


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
