"""The files that the script writes, and how many bytes of them there are at the same time."""

from __future__ import annotations

import os
import stat
import sys
import time
from pathlib import Path
from typing import Any

from .events import Events
from .quiet import quiet

MOST_FILES = 2000
LISTED_FILES = 200
SECONDS_BETWEEN = 5.0
_SPARSE = 2**20
_BLOCK = 512
_WRITTEN = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_NO_FILES = ("/dev/", "/proc/", "/sys/")


class Files:
    """Paths that were opened for writing, their largest sizes, and the largest sum of what existed at one time."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._folder = f"{events.folder}{os.sep}" if events.folder else None
        self._sizes: dict[str, int] = {}
        self._largest = 0
        self._written_state: tuple[int, int] = (0, 0)
        self._measured_at = 0.0
        self._written_at = 0.0

    def opened(self, path: Any, flags: Any) -> None:
        """An audit event: a file is opened. Most are read, so this must be cheap."""
        if type(flags) is int and flags & _WRITTEN and type(path) is not int:
            quiet(self.add)(path)

    def add(self, path: Any) -> None:
        """A file is written."""
        name = _absolute(path)
        if name in self._sizes or len(self._sizes) >= MOST_FILES or name.startswith(_NO_FILES):
            return
        if name.endswith(".pyc") or ".pyc." in name or (self._folder and name.startswith(self._folder)):
            return
        self._sizes[name] = 0

    def renamed(self, source: Any, target: Any) -> None:
        """A file or a folder gets another name."""
        if type(source) is int or type(target) is int or not self._sizes:
            return
        old, new = _absolute(source), _absolute(target)
        if old in self._sizes:
            self._sizes[new] = max(self._sizes.pop(old), self._sizes.get(new, 0))
            return
        folder = f"{old}{os.sep}"
        for name in [name for name in self._sizes if name.startswith(folder)]:
            self._sizes[f"{new}{os.sep}{name[len(folder) :]}"] = self._sizes.pop(name)

    def removed(self, _path: Any) -> None:
        """A folder is about to be removed, so this is when most exists."""
        if self._sizes:
            self.measure()

    def saved(self) -> None:
        """Something was saved: measure it and, now and then, tell it."""
        self.measure()
        if time.monotonic() - self._written_at > SECONDS_BETWEEN:
            self.tell()

    def now_and_then(self) -> None:
        """Measure, unless that was done a moment ago."""
        if self._sizes and time.monotonic() - self._measured_at > SECONDS_BETWEEN:
            self.measure()

    def measure(self) -> None:
        """Read the sizes of all files that exist."""
        total = 0
        for name, largest in list(self._sizes.items()):
            try:
                status = Path(name).stat()
            except OSError:
                continue
            if stat.S_ISREG(status.st_mode):
                size = _size_on_disk(status)
                total += size
                self._sizes[name] = max(largest, size)
        self._largest = max(self._largest, total)
        self._measured_at = time.monotonic()

    def tell(self) -> None:
        """Write the event, if there is anything that was not told."""
        sizes = {name: size for name, size in self._sizes.items() if size}
        state = (len(sizes), sum(sizes.values()))
        if state == self._written_state:
            return
        self._written_state, self._written_at = state, time.monotonic()
        largest = sorted(sizes.items(), key=lambda item: -item[1])[:LISTED_FILES]
        self._events.write("files", files=dict(largest), count=len(sizes), largest_total_bytes=self._largest)

    def restart(self) -> None:
        """Begin again, in a process that was forked from this one."""
        self._sizes, self._largest, self._written_state = {}, 0, (0, 0)


def _size_on_disk(status: os.stat_result) -> int:
    """The bytes of a file, of which a large one may have parts that were never written and take no space."""
    return status.st_size if status.st_size <= _SPARSE else min(status.st_size, status.st_blocks * _BLOCK)


def _absolute(path: Any) -> str:
    return str(Path(os.fsdecode(path)).absolute())


def watch(files: Files, excepthook: Any) -> None:
    """Pass on the audit events of this process: files, and exceptions that nobody caught.

    An audit hook cannot be removed and is called for events of all kinds, also while the interpreter ends, when
    globals may be gone: so it has all that it needs as its own variables.
    """
    opened, renamed, removed = files.opened, quiet(files.renamed), quiet(files.removed)

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            opened(args[0], args[2])
        elif event == "os.rename":
            renamed(args[0], args[1])
        elif event == "shutil.rmtree":
            removed(args[0])
        elif event == "sys.excepthook":
            excepthook(args[1], args[2], args[3])

    sys.addaudithook(hook)
