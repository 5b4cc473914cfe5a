"""An exclusive lock on a run's directory."""

import errno
import fcntl
import os
import re
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from shoestring.base.errors import UsageError
from shoestring.base.process_identity import is_same_process, process_identity
from shoestring.base.reading import read_bytes
from shoestring.base.system_errors import explaining
from shoestring.training.checkpoint.files import close_quietly, replace
from shoestring.training.run_directory.contents import LOCK, LOCK_FILE

_NO_LOCK_SUPPORT_ERRORS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}

_WAIT_SECONDS = 10.0
"""How long a process that is about to end is waited for: it may have to release tens of gigabytes."""
_MAX_CONTENT = 600
_HOLDER = re.compile(r"pid [0-9]+ on .*(?:\nparent pid [0-9]+ on .*)?")
_MAX_TIME = 253_402_300_799  # the end of the year 9999

_descriptors: set[int] = set()
"""Descriptors of locks. A forked child inherits them and would hold the lock after this process has died."""


def _release_in_child() -> None:
    while _descriptors:
        with suppress(OSError):
            os.close(_descriptors.pop())


os.register_at_fork(after_in_child=_release_in_child)


@contextmanager
def locked(run: Path) -> Iterator[None]:
    """Lock the directory `run` for this process. The system releases the lock when the process dies, however it dies.

    On a filesystem without locks (some network filesystems) the lock is the file `.lock`, which only one process can
    create. A file left by a dead process of this machine is taken over. Whether a process of another machine is dead
    cannot be known, so the user has to remove its file. Machines are distinguished by their names, and containers of
    one machine by their process numbers: two machines with the same name that share such a filesystem are not.

    A holder whose parent has ended is about to end too, for example after its supervisor was killed. It is waited for.

    Raises UsageError naming the holder if another process has the lock.
    """
    with explaining(f"{run} cannot be locked", ", then train again"):
        descriptor = _open(run / LOCK.name, os.O_RDWR | os.O_CREAT)
    lock_file = run / LOCK_FILE.name
    without_locks = False
    try:
        with explaining(f"{run / 'lock'} cannot be read", ", then train again"):
            holder = _read_holder(run / LOCK.name, descriptor)
        try:
            _lock(run, descriptor)
        except OSError as error:
            if error.errno not in _NO_LOCK_SUPPORT_ERRORS:
                raise
            without_locks = True
        if not without_locks and not _is_file(run / LOCK.name, descriptor):
            raise UsageError(f"{run} was removed by another process", hint="repeat the command")
        if without_locks:
            with explaining(f"{run} cannot be locked", ", then train again"):
                _create_lock_file(run, lock_file, holder)
        _descriptors.add(descriptor)
        try:
            with suppress(OSError):  # on a full disk the lock holds, but does not name its holder
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, f"{_own_name()}\n".encode(), 0)
            yield
        finally:
            with suppress(OSError):
                os.ftruncate(descriptor, 0)
            if without_locks:
                with suppress(OSError):
                    lock_file.unlink(missing_ok=True)
    finally:
        _descriptors.discard(descriptor)
        close_quietly(descriptor)


def is_holder_alive(run: Path) -> bool | None:
    """Return whether the process that has locked the directory `run` is alive, from the name that the lock contains.

    Returns None if no holder is named, or one of another machine. Nothing is locked, so a session can begin meanwhile.
    """
    try:
        holder = read_bytes(run / LOCK.name, follow=False, max_bytes=_MAX_CONTENT).decode(errors="replace")
    except (OSError, ValueError):
        return None
    return _is_alive(holder.partition("\n")[0])


def _lock(run: Path, descriptor: int) -> None:
    """Lock the file. Raises UsageError if another process has the lock, and OSError."""
    give_up_at = time.monotonic() + _WAIT_SECONDS
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = _read_holder(run / LOCK.name, descriptor)
            if time.monotonic() > give_up_at or not _has_lost_its_parent(holder):
                raise _locked_error(run, holder, "wait for it, stop it, or give another --run") from error
        time.sleep(0.05)


def _is_file(path: Path, descriptor: int) -> bool:
    """Return whether the descriptor is that of the file: a process whose run did not begin has removed its lock."""
    try:
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _create_lock_file(run: Path, lock_file: Path, holder: str) -> None:
    """Create the lock file, or take it over from a dead process of this machine."""
    with _machine_lock():
        if holder and not _is_dead(holder):
            raise _locked_error(run, holder, f"wait for it or stop it; if it no longer runs, remove {run / 'lock'}")
        try:
            descriptor = os.open(lock_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except FileExistsError as error:
            holder = _read_lock_file(lock_file)
            if not _is_dead(holder):
                raise _locked_error(
                    run, holder, f"wait for it or stop it; if it no longer runs, remove {lock_file}"
                ) from error
            replace(lock_file, lambda temporary: temporary.write_text(f"{_own_name()}\n"))
        else:
            with os.fdopen(descriptor, "w") as file:
                file.write(f"{_own_name()}\n")


@contextmanager
def _machine_lock() -> Iterator[None]:
    """Admit one process of this machine and user at a time, so that only one of several takes over from a dead holder.

    The directory for temporary files is local to this machine and so supports locks; if it does not, a race remains.
    """
    path = Path(tempfile.gettempdir()) / f"shoestring-{os.getuid()}.lock"
    with ExitStack() as opened:
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
            opened.callback(os.close, descriptor)
            # Another user, who may create files in that directory, could hold the lock forever.
            if os.fstat(descriptor).st_uid == os.getuid():
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


def _open(path: Path, flags: int) -> int:
    """Open a file of the lock. Raises UsageError if the path is a link, and OSError."""
    try:
        return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    except OSError as error:
        if isinstance(error, IsADirectoryError):
            raise UsageError(f"{path} is a directory, not a lock", hint=f"remove {path}") from error
        if path.is_symlink():
            raise UsageError(
                f"{path} is a symbolic link to {path.readlink()}, so it is not the lock of a run",
                hint="remove the link",
            ) from error
        raise


def _read_holder(path: Path, descriptor: int) -> str:
    """Return the process named in a file of the lock; empty if there is none.

    Raises UsageError for a file with other content: it is not a lock, and must not be overwritten.
    """
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise UsageError(f"{path} is not a regular file, so it cannot be locked", hint=f"remove {path}")
    content = os.pread(descriptor, _MAX_CONTENT + 1, 0)
    # After a failure of the machine the file may have lost its content.
    text = content.decode(errors="replace").strip("\0").strip()
    if text and not (_HOLDER.fullmatch(text) and len(content) <= _MAX_CONTENT):
        raise UsageError(
            f"{path} has other content than the lock of a run, and is not overwritten",
            hint="move the file elsewhere, or remove it if no process trains this run",
        )
    return text


def _read_lock_file(lock_file: Path) -> str:
    try:
        descriptor = _open(lock_file, os.O_RDONLY)
    except FileNotFoundError:
        return ""  # its holder has just released it
    try:
        return _read_holder(lock_file, descriptor)
    finally:
        os.close(descriptor)


def _locked_error(run: Path, holder: str, hint: str) -> UsageError:
    return UsageError(f"{run} is being trained by another process ({_describe(holder)})", hint=hint)


def _describe(holder: str) -> str:
    """Return the holder's name for a message, with its start time in UTC."""
    name, _, details = holder.partition("\n")[0].partition(", begun ")
    started = details.partition(",")[0]
    if not started.isdecimal() or int(started) > _MAX_TIME:
        return holder or "unknown"
    return f"{name}, started at {datetime.fromtimestamp(int(started), UTC):%Y-%m-%d %H:%M:%S} UTC"


def _own_name() -> str:
    """Return the name of this process for the lock, on two lines, the second for its parent."""
    return f"{_name_of(os.getpid())}\nparent {_name_of(os.getppid())}"


def _name_of(pid: int) -> str:
    identity = process_identity(pid)
    name = f"pid {pid} on {os.uname().nodename}, begun {_start_time(pid)}"
    return f"{name}, process {identity}" if identity else name


def _start_time(pid: int) -> int:
    """Return the start time of a process in unix seconds, for a person; 0 if there is none."""
    import psutil

    try:
        return int(psutil.Process(pid).create_time())
    except (psutil.Error, OverflowError):  # a number that cannot be the id of a process
        return 0


def _has_lost_its_parent(holder: str) -> bool:
    """Return whether the parent of the process that `holder` names has ended, or the process itself just now."""
    process, _, parent = holder.partition("\n")
    return not holder or _is_dead(process) or _is_dead(parent.removeprefix("parent "))


def _is_dead(holder: str) -> bool:
    """Return whether the first line of `holder` names a process of this machine that does not exist any more."""
    return _is_alive(holder.partition("\n")[0]) is False


def _is_alive(holder: str) -> bool | None:
    """Return whether the process that `holder` names exists; None if it names none of this machine."""
    words = holder.replace(",", "").split()
    if len(words) not in (6, 8) or words[3] != os.uname().nodename or not (words[1] + words[5]).isdecimal():
        return None
    if len(words) == 8:
        return is_same_process(int(words[1]), words[7])
    # The lock of an earlier version, or of a system without /proc.
    return _start_time(int(words[1])) == int(words[5])
