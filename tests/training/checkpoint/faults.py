"""Fault injection for disk operations: each call of a function of `os` on a path under a directory may fail or kill."""

import errno
import os
import threading
from contextlib import contextmanager
from pathlib import Path

NAMES = (
    *("open", "write", "read", "fsync", "close", "mkdir", "rename", "replace", "unlink", "rmdir"),
    *("stat", "lstat", "fstat", "listdir", "scandir", "statvfs", "posix_fadvise"),
    *("pwrite", "ftruncate"),
)


class Disk:
    """Records disk operations on paths under `root` while `watching`, and calls `strike` before each of them.

    Operations on a descriptor count if it was opened under `root`.
    """

    def __init__(self, root: Path, strike=lambda number, name, path: None):
        self.root, self.strike = str(root), strike
        self.operations: list[str] = []
        self._descriptors: dict[int, str] = {}
        self._lock = threading.Lock()

    @contextmanager
    def watching(self):
        originals = {name: getattr(os, name) for name in NAMES}
        for name in NAMES:
            setattr(os, name, self._watched(name, originals[name]))
        try:
            yield self
        finally:
            for name, operation in originals.items():
                setattr(os, name, operation)

    def _watched(self, name, operation):
        def watched(target=".", *arguments, **options):
            path = self._path(target, options)
            if path is None:
                return operation(target, *arguments, **options)
            with self._lock:
                number = len(self.operations)
                self.operations.append(f"{name} {Path(path).name}")
            if name == "close":  # a failing close still closes the descriptor
                self._descriptors.pop(target, None)
                operation(target)
            self.strike(number, name, path)
            if name == "close":
                return None
            result = operation(target, *arguments, **options)
            if name == "open":
                self._descriptors[result] = path
            return result

        return watched

    def _path(self, target, options):
        if isinstance(target, int):
            return self._descriptors.get(target)
        folder = self._descriptors.get(options.get("dir_fd"), "")
        path = os.path.join(folder, os.fspath(target))  # noqa: PTH118  (the path may be empty)
        return path if path.startswith(self.root) else None


def failing(number, error):
    """Return a strike that makes operation `number` fail with this errno."""

    def strike(index, name, path):
        if index == number:
            raise OSError(error, os.strerror(error), path)

    return strike


class Killed(BaseException):
    """Stands for SIGKILL in tests within one process."""


def killing(number):
    """Return a strike that kills at operation `number` and all later ones, so that no cleanup code reaches the disk."""

    def strike(index, name, path):
        if index >= number:
            raise Killed

    return strike


def failing_from(number, error):
    """Return a strike that makes operation `number` and all later ones fail with this errno."""

    def strike(index, name, path):
        if index >= number:
            raise OSError(error, os.strerror(error), path)

    return strike


KINDS = {"no space": errno.ENOSPC, "input/output": errno.EIO, "no permission": errno.EACCES}
