"""A disk whose operations fail, or are the last that a process does: each call of `os` under a directory is counted."""

import errno
import os
import threading
from contextlib import contextmanager
from pathlib import Path

NAMES = (
    *("open", "write", "read", "fsync", "close", "mkdir", "rename", "replace", "unlink", "rmdir"),
    *("stat", "lstat", "fstat", "listdir", "scandir", "statvfs", "posix_fadvise"),
)


class Disk:
    """While it is `watching`, every operation on something under `root` is written down in `done` and may be `struck`.

    Operations on a descriptor count where it was opened under `root`.
    """

    def __init__(self, root: Path, strike=lambda number, name, path: None):
        self.root, self.strike = str(root), strike
        self.done: list[str] = []
        self._mine: dict[int, str] = {}
        self._lock = threading.Lock()

    @contextmanager
    def watching(self):
        before = {name: getattr(os, name) for name in NAMES}
        for name in NAMES:
            setattr(os, name, self._watched(name, before[name]))
        try:
            yield self
        finally:
            for name, operation in before.items():
                setattr(os, name, operation)

    def _watched(self, name, operation):
        def watched(what=".", *arguments, **options):
            path = self._path(what, options)
            if path is None:
                return operation(what, *arguments, **options)
            with self._lock:
                number = len(self.done)
                self.done.append(f"{name} {Path(path).name}")
            if name == "close":  # what cannot be closed is closed all the same
                self._mine.pop(what, None)
                operation(what)
            self.strike(number, name, path)
            if name == "close":
                return None
            result = operation(what, *arguments, **options)
            if name == "open":
                self._mine[result] = path
            return result

        return watched

    def _path(self, what, options):
        if isinstance(what, int):
            return self._mine.get(what)
        folder = self._mine.get(options.get("dir_fd"), "")
        path = os.path.join(folder, os.fspath(what))  # noqa: PTH118  (it may be bytes' worth of nothing)
        return path if path.startswith(self.root) else None


def failing(number, error):
    """Strikes operation `number` with an error of this kind."""

    def strike(at, name, path):
        if at == number:
            raise OSError(error, os.strerror(error), path)

    return strike


class Killed(BaseException):
    """What ends a process here, where SIGKILL would."""


def killing(number):
    """Strikes operation `number` and all after it: no handler of the code that is killed reaches the disk."""

    def strike(at, name, path):
        if at >= number:
            raise Killed

    return strike


KINDS = {"no space": errno.ENOSPC, "input/output": errno.EIO, "no permission": errno.EACCES}
