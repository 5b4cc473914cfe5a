"""Checkpoints of which each rank writes the rows that it has. They are committed together or not at all.

The first rank creates the folder, and renames it when all files are in it. What it does is a `Store`; between its steps
the ranks exchange messages in a group of their own, because a background thread of each rank writes.
"""

import errno
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoestring.base.errors import CheckpointError, ShoestringError
from shoestring.base.reading import parse_json
from shoestring.base.system_errors import reason
from shoestring.training.checkpoint.files import directory_bytes
from shoestring.training.checkpoint.manifest import FileEntry
from shoestring.training.checkpoint.presence import GoneError
from shoestring.training.checkpoint.sections import read_sections
from shoestring.training.checkpoint.snapshot import Snapshot
from shoestring.training.checkpoint.store import Saved, Store
from shoestring.training.checkpoint.writing import write_tensors
from shoestring.training.engine.parallel.ranks import Ranks


class SharedStore(Store):
    """The checkpoints of a run whose weights are divided among `ranks`. All of them save at the same time."""

    def __init__(self, root: Path, ranks: Ranks, **arguments: Any) -> None:
        super().__init__(root, is_writer=ranks.is_first, **arguments)
        self._ranks = ranks

    def write(self, update: int, state: Snapshot, *, retained: bool = False) -> Saved:
        """Write the rows of this rank, as a part of the checkpoint that the first rank commits."""
        if not self._ranks.is_first:
            return self._follow(update, state)
        try:
            saved = super().write(update, state, retained=retained)
        except Exception as error:
            self._announce(_error_json(error))
            raise
        self._announce({})
        return saved

    def _follow(self, update: int, state: Snapshot) -> Saved:
        """Write this rank's files into each folder that the first rank announces, until the save has ended."""
        started, cpu_started = time.monotonic(), time.thread_time()
        while "folder" in (message := self._announce(None)):
            self._ranks.send_to_first(json.dumps(self._write_rows(self.root / message["folder"], state)).encode())
        if "error" in message:
            kind = GoneError if message["is_gone"] else CheckpointError
            raise kind(message["error"], problems=message["problems"], hint=message["hint"])
        self._damaged.discard(update)
        self._verified.add(update)
        return Saved(
            update=update,
            path=self.path(update),
            bytes=directory_bytes(self.path(update)),
            seconds=time.monotonic() - started,
            cpu_seconds=time.thread_time() - cpu_started,
        )

    def _write_tensors(self, folder: Path, state: Snapshot) -> dict[str, FileEntry]:
        self._announce({"folder": folder.name})
        own = self._write_rows(folder, state)
        outcomes = [own, *map(parse_json, self._ranks.send_to_first(b""))]
        for outcome in outcomes:
            if "error" in outcome:
                raise OSError(outcome["number"], outcome["error"])
        return {name: FileEntry(**entry) for outcome in outcomes for name, entry in outcome["files"].items()}

    def _write_rows(self, folder: Path, state: Snapshot) -> dict[str, Any]:
        """Write this rank's files, and return them, or why that has failed: the other ranks wait for an answer."""
        try:
            files = write_tensors(folder, state, self._ranks.rank)
        except OSError as error:
            return {"error": reason(error), "number": error.errno or errno.EIO}
        except Exception as error:  # noqa: BLE001
            return {"error": str(error) or type(error).__name__, "number": errno.EIO}
        return {"files": {name: vars(entry) for name, entry in files.items()}}

    def _announce(self, message: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return on all ranks what the first one announces."""
        announcement: dict[str, Any] = self._ranks.share(lambda: message)
        return announcement

    def _bytes(self, state: Snapshot) -> int:
        return self._ranks.size * state.bytes

    def _read(self, path: Path, update: int) -> Mapping[str, Any]:
        return read_sections(path, update, in_pieces=True)


def _error_json(error: Exception) -> dict[str, Any]:
    is_own = isinstance(error, ShoestringError)
    return {
        "error": error.message if isinstance(error, ShoestringError) else f"{type(error).__name__}: {error}",
        "problems": list(error.problems) if isinstance(error, ShoestringError) else [],
        "hint": error.hint if isinstance(error, ShoestringError) else "",
        "is_gone": is_own and isinstance(error, GoneError),
    }
