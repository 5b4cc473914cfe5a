"""What the processes of a rehearsal have observed, read from the files that they wrote.

The files come from the script's own processes, so nothing in them is trusted: a line that is no event is left out.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoestring.base.reading import LINE_BYTES, is_count, number, open_file, parse_json, read_lines
from shoestring.base.units import MIB
from shoestring.runs.rehearse.rehearsal import Frame, Holder, OutOfMemory

_FILE_BYTES = 256 * MIB
"""The longest file of events that is read."""
_READ_BYTES = 16 * MIB
"""What is read of a file at once, while the script runs."""
_MOST_FILES = 1000
"""So many processes are read, each of which has a file of events."""
_MOST_ENTRIES = 20_000
"""So many entries of the folder are looked at: the simulator makes four for each process."""
_MOST_ERRORS = 200
"""So many errors of a process are kept; all are counted."""
_MOST_NOTES = 100_000
_MOST_CHARACTERS = 2000
"""The longest text that is kept."""


@dataclass
class ProcessEvents:
    """What one process has observed, in the order of its lines."""

    pid: int
    start_time: float = -math.inf
    """When it began to use a device; all processes have the same clock."""
    end_time: float = math.inf
    """When it ended; infinite if it did not tell."""
    rank: int | None = None
    local_rank: int | None = None
    updates: int = 0
    phase: str = "loading"
    total_updates: int | None = None
    total_source: str = ""
    stopped: bool = False
    """Whether it ended itself after the updates that were asked for."""
    errors: list[OutOfMemory] = field(default_factory=list)
    """The last of the out-of-memory errors."""
    error_count: int = 0
    holders: list[Holder] = field(default_factory=list)
    """What held the memory at the last of `errors`."""
    exception: str = ""
    """The type and message of an exception that nothing caught."""
    exception_is_out_of_memory: bool = False
    failed: float = math.inf
    """When that exception was raised: those of other processes may follow from it."""
    written_bytes: int = 0
    """The most bytes that the files it wrote had at the same time."""
    observer_errors: list[str] = field(default_factory=list)
    """What could not be observed, with the reason."""


class EventReader:
    """Reads the events of all processes in a folder, each line once, while they are being written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._offsets: dict[Path, int] = {}
        self.processes: dict[int, ProcessEvents] = {}

    def read(self) -> None:
        """Read what was written since the last call."""
        for pid, path in _numbered(self._folder, "events.", ".jsonl"):
            if pid in self.processes or len(self.processes) < _MOST_FILES:
                process = self.processes.setdefault(pid, ProcessEvents(pid))
                with suppress(OSError, ValueError):
                    for event in self._new_events(path):
                        _apply(process, event)

    @property
    def updates(self) -> int:
        """The updates that have been made: those of the process that has made most."""
        return max((process.updates for process in self.processes.values()), default=0)

    @property
    def leading(self) -> ProcessEvents | None:
        """The process that has made most updates, rank 0 among equals."""
        ranked = sorted(self.processes.values(), key=lambda process: (-process.updates, process.rank or 0, process.pid))
        return ranked[0] if ranked else None

    def _new_events(self, path: Path) -> Iterator[Mapping[str, Any]]:
        offset = self._offsets.get(path, 0)
        with os.fdopen(open_file(path, follow=False), "rb") as file:
            file.seek(offset)
            content = file.read(max(0, min(_READ_BYTES, _FILE_BYTES - offset)))
        complete = content[: content.rfind(b"\n") + 1]
        if not complete and len(content) > LINE_BYTES:
            complete = content  # no event is as long, so nothing of this line is one
        self._offsets[path] = offset + len(complete)
        for line in complete.splitlines():
            with suppress(ValueError):
                event = parse_json(line, strict=False)
                if isinstance(event, dict):
                    yield event


def _apply(process: ProcessEvents, event: Mapping[str, Any]) -> None:
    """Add an event to what is known of a process."""
    match event.get("kind"):
        case "process":
            process.rank, process.local_rank = _count(event, "rank"), _count(event, "local_rank")
            start_time = number(event.get("time"))
            process.start_time = process.start_time if start_time is None else start_time
        case "exit":
            end_time = number(event.get("time"))
            process.end_time = process.end_time if end_time is None else end_time
        case "phase":
            process.phase = _text(event, "phase") or process.phase
        case "update":
            process.updates = _count(event, "update") or process.updates
        case "total":
            process.total_updates = _count(event, "total_updates")
            process.total_source = _text(event, "source")
        case "out_of_memory":
            process.error_count += 1
            process.errors = [*process.errors[1 - _MOST_ERRORS :], _out_of_memory(event)]
            process.holders = [holder for item in _items(event, "holders") if (holder := _holder(item))]
        case "exception":
            process.exception = f"{_text(event, 'type')}: {_text(event, 'message')}".strip(": ")
            process.exception_is_out_of_memory = event.get("out_of_memory") is True
            failed = number(event.get("time"))
            process.failed = process.failed if failed is None else failed
        case "files":
            process.written_bytes = max(process.written_bytes, _count(event, "largest_total_bytes") or 0)
        case "observer_error":
            if len(process.observer_errors) < _MOST_ERRORS:
                process.observer_errors.append(f"{_text(event, 'function')[:100]}: {_text(event, 'error')[:200]}")
        case "stopped":
            process.stopped = True


def _out_of_memory(event: Mapping[str, Any]) -> OutOfMemory:
    sizes = {
        name: _count(event, name) or 0
        for name in ("requested_bytes", "allocated_bytes", "reserved_bytes", "free_bytes")
    }
    stack = tuple(frame for item in _items(event, "stack") if (frame := _frame(item)))
    own = event.get("own_frame")
    return OutOfMemory(
        device=_count(event, "device") or 0,
        update=_count(event, "update") or 0,
        phase=_text(event, "phase"),
        stack=stack,
        own_frame=_frame(own) if isinstance(own, dict) else None,
        **sizes,
    )


def _holder(item: Mapping[str, Any]) -> Holder | None:
    frame, size = _frame(item), _count(item, "bytes")
    if frame is None or size is None:
        return None
    return Holder(bytes=size, count=_count(item, "count") or 1, kind=_text(item, "kind") or "other", frame=frame)


def _frame(item: Mapping[str, Any]) -> Frame | None:
    line = _count(item, "line")
    return None if line is None else Frame(file=_text(item, "file"), line=line, function=_text(item, "function"))


def _items(event: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    value = event.get(name)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _count(event: Mapping[str, Any], name: str) -> int | None:
    value = event.get(name)
    return value if is_count(value) else None


def _text(event: Mapping[str, Any], name: str) -> str:
    value = event.get(name)
    return value[:_MOST_CHARACTERS] if isinstance(value, str) else ""


def read_notes(folder: Path) -> list[Mapping[str, Any]]:
    """Return the notes of all processes on assumed values and on functions of CUDA that are not simulated."""
    notes: list[Mapping[str, Any]] = []
    for _, path in _numbered(folder, "notes.", ""):
        with suppress(OSError, ValueError):
            for line in read_lines(path, follow=False, max_bytes=_FILE_BYTES):
                if len(notes) == _MOST_NOTES:
                    return notes
                with suppress(ValueError):
                    note = parse_json(line or b"null", strict=False)
                    if isinstance(note, dict):
                        notes.append(note)
    return notes


def _numbered(folder: Path, beginning: str, end: str) -> Iterable[tuple[int, Path]]:
    """Return the files of processes, of which each has its number in the name, in the order of the numbers."""
    files = []
    with suppress(OSError), os.scandir(folder) as entries:
        for _, entry in zip(range(_MOST_ENTRIES), entries, strict=False):
            number = entry.name.removeprefix(beginning).removesuffix(end)
            if f"{beginning}{number}{end}" == entry.name and number.isascii() and number.isdigit() and len(number) < 11:
                files.append((int(number), Path(entry.path)))
    return sorted(files)
