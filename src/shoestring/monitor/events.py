"""A run's event record: an append-only file with one JSON line per event.

Every event has `time` (unix seconds), `session` (from 1) and `event`, its kind, which determines the other fields:

    session     update, limit_seconds, startup_seconds (since its process started), target, device, micro_batch,
                precision, versions {name: version}, machine {result of hardware.probe}, pid
    progress    update, epoch, updates, samples, seconds, loss, learning_rate, gradient_norm, memory_bytes,
                skipped (optimizer steps skipped on fp16 overflow), waiting_seconds (the part of `seconds` spent
                waiting for data), workers (data-loading processes); on a GPU gpu_utilisation (0 to 1), gpu_watts,
                gpu_allocated_bytes
    evaluation  update, epoch, part (validation or test), metrics {name: number or JSON}, seconds, best
    save        update, bytes, seconds, stall_seconds (the part that blocked training), kind (full, light or best)
    unsaved     update, what (checkpoint, light or best), why: writing failed and training continues
    damaged     path, file, why
    note        message
    oom         update, during (update, optimizer step or evaluation), failure (error message), micro_batch,
                done (the reduction made), back_to (the update of the restored checkpoint, if any)
    (any)       lost: the number of preceding events lost because the disk was full
    (any)       crc32: the checksum of the line without this field
    stop        update, status (paused, finished or failed), reason, updates, seconds, saving_seconds,
                evaluating_seconds, state_sha256 (the digest of state.json)

`update` is the number of updates completed so far; `updates` and `samples` count this line alone.
"""

import json
import math
import os
import shutil
import time
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from shoestring.checkpoint.files import is_disk_full, json_digest, replace

Event = dict[str, Any]

_CHECKSUM = b', "crc32": "%s"'
_REPEATABLE = ("progress", "evaluation", "save")


class Events:
    """The open record at `path`, written by one process; `session` is the last recorded session plus one.

    Every event is one `write` system call, so that a kill leaves at most one incomplete last line; the next
    event starts on a new line. Data that the system has not yet flushed to the disk is lost when the machine
    fails, but not when the process does.
    """

    def __init__(self, path: Path) -> None:
        self.session = 1 + max((event["session"] for event in read(path)), default=0)
        if path.exists() and path.stat().st_nlink > 1:
            # The other name is perhaps in a copy of the run (cp -al), which must not change.
            replace(path, lambda copy: shutil.copyfile(path, copy))
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        size = os.fstat(self._file).st_size
        self.lost = 0
        self._incomplete_line = size > 0 and os.pread(self._file, 1, size - 1) != b"\n"

    def emit(self, event: str, **fields: Any) -> None:
        """Append one line; `fields` are JSON, and a number that is not finite is written as its name (`"nan"`).

        On a full disk the line is lost, and the next line that can be written records how many were lost. Raises
        OSError when the line cannot be written for another reason.
        """
        values = {"time": time.time(), "session": self.session, "event": event, **fields}
        if self.lost:
            values["lost"] = self.lost
        line = _with_checksum(json.dumps(_finite(values), allow_nan=False, ensure_ascii=False).encode()) + b"\n"
        if self._incomplete_line:
            line = b"\n" + line
        self._incomplete_line = True
        try:
            written = os.write(self._file, line)
        except OSError as error:
            if not is_disk_full(error):
                raise
            written = 0
        if written < len(line):
            self.lost += 1
            return
        self._incomplete_line, self.lost = False, 0

    def close(self) -> None:
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read(path: Path, offset: int = 0) -> Iterator[Event]:
    """Yield the events at `path` in order, skipping incomplete lines; none if there is no file.

    The first `offset` bytes are skipped.
    """
    if not path.exists():
        return
    with path.open("rb") as lines:
        lines.seek(offset)
        for line in lines:
            if (event := _parse(line)) is not None:
                yield event


def count_damaged(path: Path) -> int:
    """Return the number of lines at `path` that are incomplete or have changed since they were written."""
    if not path.exists():
        return 0
    with path.open("rb") as lines:
        return sum(bool(line.strip()) and _parse(line) is None for line in lines)


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
    last = next(iter(deque(events, maxlen=1)), {})
    return last.get("event") == "stop" and last.get("state_sha256") not in (None, state_digest(state))


def _with_checksum(line: bytes) -> bytes:
    """Add the CRC-32 of the line before its closing brace."""
    return line[:-1] + _CHECKSUM % f"{zlib.crc32(line):08x}".encode() + b"}"


def _parse(line: bytes) -> Event | None:
    """Return the event of a line, without its checksum; None if the line is incomplete or damaged."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not _is_event(event):
        return None
    checksum = event.pop("crc32", None)
    if checksum is not None:  # version 0.1.0 wrote none
        content = line.strip()
        without = content[: -len(_CHECKSUM % (b"0" * 8)) - 1] + b"}"
        if content != _with_checksum(without):
            return None
    return dict(event)


def _is_event(value: object) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("event"), str)
        and isinstance(value.get("session"), int)
        and isinstance(value.get("time"), int | float)
    )


def _same_evaluation(old: Event, new: Event) -> bool:
    return old["event"] == "evaluation" and all(old.get(key) == new.get(key) for key in ("update", "part"))


def _finite(value: Any) -> Any:
    """Replace every number in `value` that JSON cannot represent by its name."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(float(value))
    if isinstance(value, Mapping):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return value
