"""A run's record: one JSON line for each thing that happened, only ever appended.

Every event has `time` (unix seconds), `session` (from 1) and `event`, which says what else it has:

    session     update, limit_seconds, startup_seconds (since its process began), target, device, micro_batch,
                precision, versions {name: version}, machine {what hardware.probe tells}, pid
    progress    update, epoch, updates, samples, seconds, loss, learning_rate, gradient_norm, memory_bytes,
                skipped (optimizer steps left out because fp16 overflowed), waiting_seconds (of them, training stood
                still for data), workers (processes that fetch); on a GPU gpu_utilisation (0 to 1), gpu_watts,
                gpu_allocated_bytes
    evaluation  update, epoch, part (validation or test), metrics {name: number or JSON}, seconds, best
    save        update, bytes, seconds, stall_seconds (of them, training stood still), kind (full, light or best)
    unsaved     update, what (checkpoint, light or best), why: it could not be written, training goes on
    damaged     path, file, why
    note        message
    oom         update, during (update, optimizer step or evaluation), failure (what was said), micro_batch (tried),
                done (what was made smaller), back_to (the update of the checkpoint gone back to, where one was)
    (any)       lost: so many events before it found no room on the disk
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

from shoestring.checkpoint.files import is_full

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
        self.lost = 0
        self._torn = size > 0 and os.pread(self._file, 1, size - 1) != b"\n"

    def emit(self, event: str, **fields: Any) -> None:
        """Append one line; `fields` are JSON, a number that is not finite is written as its name (`"nan"`).

        On a full disk the line is lost, and the next that finds room says how many were. Raises OSError where it
        cannot be written for another reason.
        """
        values = {"time": time.time(), "session": self.session, "event": event, **fields}
        if self.lost:
            values["lost"] = self.lost
        line = json.dumps(_finite(values), allow_nan=False, ensure_ascii=False).encode() + b"\n"
        if self._torn:
            line = b"\n" + line
        self._torn = True
        try:
            written = os.write(self._file, line)
        except OSError as error:
            if not is_full(error):
                raise
            written = 0
        if written < len(line):
            self.lost += 1
            return
        self._torn, self.lost = False, 0

    def close(self) -> None:
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read(path: Path, offset: int = 0) -> Iterator[Event]:
    """The events at `path` as they happened, without lines that a kill tore; none if there is no file.

    The first `offset` bytes are left out.
    """
    if not path.exists():
        return
    with path.open("rb") as lines:
        lines.seek(offset)
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
        if event["event"] == "session" or "back_to" in event:
            start = event.get("back_to", event.get("update", 0))
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
