"""What is observed in a process, as lines of JSON in the folder of the rehearsal."""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from .quiet import new_errors

LISTED_UPDATES = 20_000
"""So many updates have a line each; of later ones every tenth has, which keeps the file of a long run small."""


class Events:
    """The file `events.<pid>.jsonl`, in which nothing stands until the process uses a device.

    A process that a training process forks, such as a worker that loads data, inherits all hooks and uses no device:
    it must not write a second account of the same updates. So each process begins to write for itself, and a line is
    written only by the process that has begun.
    """

    def __init__(self, folder: str | None) -> None:
        self._folder = str(Path(folder).absolute()) if folder else None  # a script may change its directory
        self._process: int | None = None

    @property
    def folder(self) -> str | None:
        """The folder of the rehearsal."""
        return self._folder

    @property
    def written(self) -> bool:
        """Whether this process writes events."""
        return self._process == os.getpid()

    def begin(self) -> bool:
        """Write from now on, with a line about the process; return whether it had not begun."""
        if self._folder is None or self.written:
            return False
        self._process = os.getpid()
        self.write(
            "process",
            pid=self._process,
            parent=os.getppid(),
            rank=_whole(os.environ.get("RANK")),
            local_rank=_whole(os.environ.get("LOCAL_RANK")),
            argv=[argument[:1000] for argument in getattr(sys, "argv", [])[:100]],
        )
        return True

    def write(self, kind: str, **values: Any) -> None:
        """Append a line. The file is opened for each one: a script may close descriptors that it does not know."""
        if self._folder is None or not self.written:
            return
        if kind == "update" and values["update"] > LISTED_UPDATES and values["update"] % 10:
            return
        line = _line(kind, values)
        for function, error in new_errors().items():  # an observer that failed: what it observes is missing
            line += _line("observer_error", {"function": function, "error": error})
        path = f"{self._folder}/events.{self._process}.jsonl"
        with suppress(OSError):  # a full disk or too many open files: what the caller observes goes on
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                os.write(descriptor, line.encode("utf-8", "backslashreplace"))
            finally:
                os.close(descriptor)


def _line(kind: str, values: dict[str, Any]) -> str:
    return json.dumps({"kind": kind, "time": time.monotonic(), **values}, default=str) + "\n"


def _whole(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() else None
