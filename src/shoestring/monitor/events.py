"""A run's record: one JSON line for each thing that happened, only ever appended.

Every event has `time` (unix seconds), `session` (from 1) and `event`, which says what else it has:

    session     update, limit_seconds, target, device, micro_batch, precision, versions {name: version},
                machine {what hardware.probe tells}, pid
    progress    update, epoch, updates, samples, seconds, loss, learning_rate, gradient_norm, memory_bytes,
                skipped (updates left out because fp16 overflowed)
    evaluation  update, epoch, part (validation or test), metrics {name: number or JSON}, seconds, best
    save        update, bytes, seconds, kind (full, light or best)
    damaged     path, file, why
    note        message
    oom         what did not fit and what was done about it
    stop        update, status (paused, finished or failed), reason, updates, seconds, saving_seconds,
                evaluating_seconds

`update` is the number of updates done so far; `updates` and `samples` are those of this line alone.
"""

import json
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

Event = dict[str, Any]

_COUNTED = ("progress", "evaluation", "save")


class Events:
    """The open record at `path`, written by one process; `session` is one more than the last one found in it.

    Every event goes out in one `write` of the operating system, so that a kill leaves at most a torn last
    line; that line is ended before the next one begins. What the system had not yet brought to the disk is
    lost with the machine, not with the process.
    """

    def __init__(self, path: Path) -> None:
        self.session = 1 + max((event["session"] for event in read(path)), default=0)
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        size = os.fstat(self._file).st_size
        self._torn = size > 0 and os.pread(self._file, 1, size - 1) != b"\n"

    def emit(self, event: str, **fields: Any) -> None:
        """Append one line; `fields` are JSON, a number that is not finite is written as its name (`"nan"`).

        Raises OSError where the line cannot be written whole, as on a full disk.
        """
        values = {"time": time.time(), "session": self.session, "event": event, **fields}
        line = json.dumps(_finite(values), allow_nan=False, ensure_ascii=False).encode() + b"\n"
        if self._torn:
            line = b"\n" + line
        self._torn = True
        written = os.write(self._file, line)
        if written < len(line):
            raise OSError(f"only {written} of {len(line)} bytes of an event were written; the disk may be full")
        self._torn = False

    def close(self) -> None:
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read(path: Path) -> Iterator[Event]:
    """The events at `path` as they happened, without lines that a kill tore; none if there is no file."""
    if not path.exists():
        return
    with path.open("rb") as lines:
        for line in lines:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if _is_event(event):
                yield event


def current(events: Iterable[Event]) -> list[Event]:
    """The events of the updates that count.

    A session that starts at update u does again what a kill had taken: earlier progress, evaluations and
    saves beyond u are left out, and of two evaluations of the same part at the same update the first.
    """
    kept: list[Event] = []
    for event in events:
        if event["event"] == "session":
            start = event.get("update", 0)
            kept = [old for old in kept if old["event"] not in _COUNTED or old.get("update", 0) <= start]
        elif event["event"] == "evaluation":
            kept = [old for old in kept if not _same_evaluation(old, event)]
        kept.append(event)
    return kept


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
    """`value` with every number that JSON cannot write replaced by its name."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(float(value))
    if isinstance(value, Mapping):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return value
