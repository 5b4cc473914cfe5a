"""Errors of the operating system as errors with a hint: what could not be done, with which path, why, what to do."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shoestring.base.errors import RunError, ShoestringError, UsageError

_ANOTHER_DIRECTORY = "choose another directory"
_NETWORK_DISK = "connect the network disk again"

_REMEDIES = {
    errno.ENOSPC: "free disk space there (df -h shows the space, df -i the number of files)",
    errno.EDQUOT: "remove files of yours there: your quota is used up",
    errno.EFBIG: "raise the limit on the size of files: ulimit -f unlimited",
    errno.EROFS: f"mount that disk for writing, or {_ANOTHER_DIRECTORY}",
    errno.EACCES: f"allow your user to write there, or {_ANOTHER_DIRECTORY}",
    errno.EPERM: f"allow your user to write there, or {_ANOTHER_DIRECTORY}",
    errno.ENOTDIR: f"{_ANOTHER_DIRECTORY}: a part of this path is a file",
    errno.EEXIST: f"{_ANOTHER_DIRECTORY}: there is a file or a link that leads nowhere",
    errno.ENOENT: f"create it, or {_ANOTHER_DIRECTORY}",
    errno.ELOOP: f"{_ANOTHER_DIRECTORY}: links of this path lead in a circle",
    errno.ENAMETOOLONG: "choose a shorter path",
    errno.EMFILE: "raise the limit on open files: ulimit -n 4096",
    errno.ENFILE: "end other programs: this machine cannot open more files",
    errno.EIO: "check the disk (dmesg shows its errors), or move the directory to another disk",
    errno.ESTALE: _NETWORK_DISK,
    errno.ENOTCONN: _NETWORK_DISK,
    errno.ETIMEDOUT: _NETWORK_DISK,
}

_UNUSABLE_PATH = {
    *(errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST, errno.ENOENT, errno.ELOOP),
    errno.ENAMETOOLONG,
}
"""Errors of a path that was chosen wrongly, which are invalid usage."""


def reason(error: OSError) -> str:
    """Return why the operation failed and, if it is known, with which path."""
    text = error.strerror or str(error)
    return f"{text}: {error.filename}" if error.filename and not isinstance(error.filename, int) else text


def remedy(error: OSError) -> str:
    """Return what the user can do about it."""
    return _REMEDIES.get(error.errno or 0, "check the disk and the path")


def explain(failure: str, error: OSError, after: str = "") -> ShoestringError:
    """Return the error for a `failure`: its reason, what to do, and what to do `after` that."""
    kind = UsageError if error.errno in _UNUSABLE_PATH else RunError
    return kind(f"{failure}: {reason(error)}", hint=f"{remedy(error)}{after}")


def require_present(path: Path, hint: str) -> None:
    """Raise UsageError with the reason if there is neither a directory nor a file at `path`."""
    try:
        path.stat()
    except FileNotFoundError as error:
        is_link = path.is_symlink()
        text = f"{path} is a link that leads nowhere" if is_link else f"there is no directory {path}"
        raise UsageError(text, hint=hint) from error
    except NotADirectoryError as error:
        raise UsageError(f"there is no directory {path}: a part of this path is a file", hint=hint) from error
    except OSError as error:  # a name that is too long, links in a circle, no permission
        raise explain(f"{path} cannot be read", OSError(error.errno, error.strerror)) from error


@contextmanager
def explaining(failure: str, after: str = "") -> Iterator[None]:
    """Raise errors of the operating system in the body as `explain` returns them."""
    try:
        yield
    except OSError as error:
        raise explain(failure, error, after) from error


@contextmanager
def explaining_below(folder: Path, failure: str) -> Iterator[None]:
    """Do so for errors of paths in `folder` alone: others are those of a recipe's own code, or of its data."""
    try:
        yield
    except OSError as error:
        if not isinstance(error.filename, str) or folder.absolute() not in Path(error.filename).absolute().parents:
            raise
        raise explain(failure, error) from error
