"""A run's event record: an append-only file with one JSON line per event.

`event_kinds.py` lists the kinds of events with their fields.
"""

import json
import math
import os
import shutil
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from shoestring.base.errors import UsageError
from shoestring.base.json_values import encode_record
from shoestring.base.reading import (
    COUNT,
    LINE_BYTES,
    TEXT,
    Kind,
    find_problems,
    number,
    open_file,
    parse_json,
    read_lines,
)
from shoestring.base.system_errors import reason
from shoestring.base.units import MIB
from shoestring.training.checkpoint.files import close_quietly, is_disk_full, json_digest, replace

Event = dict[str, Any]

_TAIL_BYTES = 1 << 20
"""More than any event: what is read of the end of a record to find the last one."""
_CHECKSUM = b', "crc32": "%s"'
_REPEATABLE = ("progress", "evaluation", "save")
_MAX_BYTES = 4096 * MIB
"""The largest record that is read; a day of training writes some 80 MB."""
_OF_COPIES = ("backup", "backup_failed")
"""Events of the process that copies the run, which may follow the end of a session."""
_YEAR_3000 = 32_503_680_000
_MAX_SECONDS = 1e10
_REQUIRED = {
    "event": TEXT,
    "session": COUNT,
    "time": Kind(name="a time in unix seconds", types=(int, float), low=0, high=_YEAR_3000),
}
_OPTIONAL = {"update": COUNT, "back_to": COUNT}


class Events:
    """The open record at `path`, written by one process; `session` is the last recorded session plus one.

    Every event is one `write` system call, so that a kill leaves at most one incomplete last line; the next
    event starts on a new line. Data that the system has not yet flushed to the disk is lost when the machine
    fails, but not when the process does.
    """

    def __init__(
        self,
        path: Path,
        report: Callable[[str], object] | None = None,
        *,
        session: int | None = None,
        is_shared: bool = False,
    ) -> None:
        """`report` receives a message when events begin to be lost because the disk fails; a full disk is reported
        elsewhere. `session` is the number of a session that has recorded its start; by default a new one begins. If the
        file `is_shared`, a session has it open now.
        """
        self.session = session or 1 + max((event["session"] for event in read(path)), default=0)
        if not is_shared and path.exists() and path.stat().st_nlink > 1:
            # The other name is perhaps in a copy of the run (cp -al), which must not change. A session that has the
            # file open would go on with the one of the copy.
            replace(path, lambda copy: shutil.copyfile(path, copy))
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        size = os.fstat(self._file).st_size
        self.lost, self.why_lost = 0, "No space left on device"
        self._report = report
        self._incomplete_line = size > 0 and os.pread(self._file, 1, size - 1) != b"\n"

    def emit(self, event: str, **fields: Any) -> None:
        """Append one line; `fields` are encoded as `json_values.py` says.

        A line that cannot be written, for example on a full disk, is lost: the run matters more than its record. The
        next line that can be written records how many were lost.
        """
        values = {"time": time.time(), "session": self.session, "event": event, **fields}
        if self.lost:
            values["lost"] = self.lost
        text = json.dumps(encode_record(values), allow_nan=False, ensure_ascii=False)
        # A path that is not UTF-8 is written with the escapes of JSON.
        line = _with_checksum(text.encode(errors="backslashreplace")) + b"\n"
        if self._incomplete_line:
            line = b"\n" + line
        self._incomplete_line = True
        try:
            written = os.write(self._file, line)
        except OSError as error:
            if self._report and not self.lost and not is_disk_full(error):
                self._report(f"events are not recorded, and training continues: {error}")
            written, self.why_lost = 0, reason(error)
        if written < len(line):
            self.lost += 1
            return
        self._incomplete_line, self.lost = False, 0

    def close(self) -> None:
        close_quietly(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class NoEvents:
    """The record of a process that writes none, beside that of another one at `path`."""

    lost, why_lost = 0, ""

    def __init__(self, path: Path) -> None:
        self.session = 1 + max((event["session"] for event in read(path)), default=0)

    def emit(self, event: str, **fields: Any) -> None:
        """Write nothing."""

    def close(self) -> None:
        """There is nothing to close."""


def append_end(path: Path, state: Mapping[str, Any], **fields: Any) -> None:
    """Record the end of a session that could not record it, with the fields of a `stop` event.

    `state` is what state.json has now. If the session had not recorded its start, its end is a note. Disk errors are
    ignored.
    """
    with suppress(OSError, UsageError):
        last = _last(path)
        if last is None:
            return
        with Events(path, session=last["session"]) as record:
            if last["event"] == "stop":
                record.emit("note", message=fields["reason"], state_sha256=state_digest(state))
            else:
                record.emit("stop", **fields, state_sha256=state_digest(state))


def append(path: Path, event: str, *, is_shared: bool = False, **fields: Any) -> None:
    """Record an event of the last session, from a process beside it; the file `is_shared` if the session runs.

    Disk errors are ignored.
    """
    with suppress(OSError, UsageError):
        last = _last(path) if path.exists() else None
        with Events(path, session=last["session"] if last else None, is_shared=is_shared) as record:
            record.emit(event, **fields)


def _last(path: Path) -> Event | None:
    """Return the last event of a session at `path`; None if there is none. Raises OSError."""
    return _last_of_session(read(path, max(0, path.stat().st_size - _TAIL_BYTES)))


def _last_of_session(events: Iterable[Event]) -> Event | None:
    return next(iter(deque((event for event in events if event["event"] not in _OF_COPIES), maxlen=1)), None)


def read(
    path: Path, offset: int = 0, *, on_skipped: Callable[[int, str], object] = lambda _line, _reason: None
) -> Iterator[Event]:
    """Yield the events at `path` in order; none if there is no file. The first `offset` bytes are skipped.

    A line that is no event, such as an incomplete one, or that has changed since it was written, is skipped:
    `on_skipped(line, reason)` is called, where `line` is counted from 1 after the first `offset` bytes.

    Raises UsageError if the file cannot be read.
    """
    try:
        for position, line in enumerate(read_lines(path, follow=False, max_bytes=_MAX_BYTES, offset=offset), 1):
            try:
                event = _parse(line)
            except ValueError as error:
                on_skipped(position, str(error))
            else:
                yield event
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{path} cannot be read: {error}",
            hint="move it away: the run continues without the history of its earlier sessions",
        ) from error


def read_complete(path: Path, offset: int, *, limit_bytes: float = math.inf) -> tuple[list[Event], int]:
    """Return the events of the complete lines from byte `offset` on, and the offset of what follows these lines.

    There is none while there is no file; lines that are no events are skipped. Reading ends with the line that exceeds
    `limit_bytes`. Raises OSError.
    """
    events: list[Event] = []
    try:
        descriptor = open_file(path, follow=False, max_bytes=_MAX_BYTES)
    except FileNotFoundError:
        return events, 0
    with os.fdopen(descriptor, "rb") as file:
        file.seek(offset)
        end = offset + limit_bytes
        # A longer line is no event, and neither are the parts into which it is divided here.
        while offset < end and ((line := file.readline(LINE_BYTES)).endswith(b"\n") or len(line) == LINE_BYTES):
            offset += len(line)
            with suppress(ValueError):
                events.append(_parse(line))
    return events, offset


def current(events: Iterable[Event]) -> list[Event]:
    """Return the events without superseded work.

    A session that starts at update u repeats the work after u: earlier progress, evaluations and saves beyond u
    are left out. Of two evaluations of the same part at the same update, the first is left out.
    """
    current_events: list[Event] = []
    for event in events:
        if event["event"] == "session" or "back_to" in event:
            start = event.get("back_to", event.get("update", 0))
            current_events = [
                old for old in current_events if old["event"] not in _REPEATABLE or old.get("update", 0) <= start
            ]
        elif event["event"] == "evaluation":
            current_events = [old for old in current_events if not _same_evaluation(old, event)]
        current_events.append(event)
    return current_events


def state_digest(state: Mapping[str, Any]) -> str:
    """Return the digest of the content of state.json, which the event `stop` records."""
    return json_digest(json.loads(json.dumps(state)))


def is_changed(state: Mapping[str, Any], events: Iterable[Event]) -> bool:
    """Return whether state.json, read as `state`, has changed since the last session ended and wrote it."""
    last = _last_of_session(events) or {}
    return last.get("state_sha256") not in (None, state_digest(state))


def _with_checksum(line: bytes) -> bytes:
    """Add the CRC-32 of the line before its closing brace."""
    return line[:-1] + _CHECKSUM % f"{zlib.crc32(line):08x}".encode() + b"}"


def _parse(line: bytes | None) -> Event:
    """Return the event in a line, without its checksum. Raises ValueError with the reason if there is none."""
    if line is None:
        raise ValueError("it is too long")
    event = parse_json(line, strict=False, paths=True)  # fast, because a record may have millions of lines
    if not isinstance(event, dict):
        raise ValueError("it is not a JSON object")
    if event.pop("crc32", None) is not None:  # version 0.1.0 wrote none
        content = line.strip()
        if content != _with_checksum(content[: -len(_CHECKSUM % (b"0" * 8)) - 1] + b"}"):
            raise ValueError("it has changed since it was written")
    problems = [f"{name} is missing" for name in _REQUIRED if name not in event]
    problems += find_problems(event, _REQUIRED | _OPTIONAL)
    problems += [
        f"{name}: {value} is not a duration"
        for name, value in event.items()
        if name.endswith("seconds") and abs(number(value) or 0.0) > _MAX_SECONDS
    ]
    if problems:
        raise ValueError("; ".join(problems))
    return event


def _same_evaluation(old: Event, new: Event) -> bool:
    return old["event"] == "evaluation" and all(old.get(key) == new.get(key) for key in ("update", "part"))
