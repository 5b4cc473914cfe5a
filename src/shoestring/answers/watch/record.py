"""The record of a run, read while it grows: each byte is read once, and what remains of it has a limited size."""

from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoestring.answers.event_text import describe
from shoestring.answers.values import numbers
from shoestring.answers.watch.curve import Curve
from shoestring.base.reading import number
from shoestring.base.units import MIB
from shoestring.training.monitor.events import Event, read_complete
from shoestring.training.monitor.progress import is_reward
from shoestring.training.monitor.speed import Speed

_SLICE_BYTES = 8 * MIB
"""As events in memory, a slice takes some five times as much."""
_MAX_HISTORY = 20


@dataclass
class Session:
    """A session as far as it is recorded; times are unix seconds."""

    number: int
    start: float
    end: float
    device: str = ""
    parameters: dict[str, int] = field(default_factory=dict)
    """`total` and `trainable`; empty in the record of an earlier version."""
    seconds: float | None = None
    """Its own measurement, which a killed session does not have."""
    status: str = ""
    longest_gap: float = 0.0
    """Seconds between two events."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The numeric metrics of one part of the data at an update."""

    update: int
    part: str
    metrics: dict[str, float]
    best: bool


@dataclass
class Summary:
    """What is known from the events so far, without work that was lost and repeated."""

    loss: Curve = field(default_factory=Curve)
    rewards: dict[str, Curve] = field(default_factory=dict)
    evaluations: dict[tuple[int, str], Evaluation] = field(default_factory=dict)
    progress: dict[str, Any] = field(default_factory=dict)
    """The last event `progress`."""
    update: int = 0
    peak_bytes: float = 0.0
    speed: Speed = field(default_factory=Speed)
    sessions: dict[int, Session] = field(default_factory=dict)
    history: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=_MAX_HISTORY))
    """Time and sentence of the last events other than progress."""

    def add(self, event: Event) -> None:
        session = self._session(event)
        if text := describe(event):
            self.history.append((event["time"], text))
        match event["event"]:
            case "progress":
                self._add_progress(event, session)
            case "evaluation":
                self._add_evaluation(event)
            case "session":
                session.start -= number(event.get("startup_seconds")) or 0.0
                session.device = str(event.get("device") or "")
                session.parameters = {name: round(value) for name, value in numbers(event.get("parameters")).items()}
                self.speed = Speed()
            case "stop":
                session.seconds = number(event.get("seconds"))
                session.status = str(event.get("status") or "")
        if event["event"] == "session" or "back_to" in event:
            self._cut(event["back_to"] if "back_to" in event else event.get("update", 0))
        if event["event"] != "save":  # it may end after later updates
            self.update = event.get("update", self.update)
        session.longest_gap = max(session.longest_gap, event["time"] - session.end)
        session.end = max(session.end, event["time"])

    def _session(self, event: Event) -> Session:
        key = event["session"]
        if key not in self.sessions:
            self.sessions[key] = Session(key, event["time"], event["time"])
        return self.sessions[key]

    def _add_progress(self, event: Event, session: Session) -> None:
        update = event.get("update", 0)
        updates, samples, seconds = (number(event.get(key)) or 0.0 for key in ("updates", "samples", "seconds"))
        if (loss := number(event.get("loss"))) is not None:
            self.loss.add(update, loss, updates)
        for name, value in numbers(event.get("metrics")).items():
            if is_reward(name):
                self.rewards.setdefault(name, Curve()).add(update, value)
        if seconds > 0:
            other_seconds = max(0.0, event["time"] - session.end - seconds)
            self.speed.add(updates=round(updates), samples=round(samples), seconds=seconds, other_seconds=other_seconds)
        self.peak_bytes = max(self.peak_bytes, number(event.get("memory_bytes")) or 0.0)
        self.progress = event

    def _add_evaluation(self, event: Event) -> None:
        evaluation = Evaluation(
            update=event.get("update", 0),
            part=str(event.get("part") or ""),
            metrics=numbers(event.get("metrics")),
            best=event.get("best") is True,
        )
        key = (evaluation.update, evaluation.part)
        self.evaluations.pop(key, None)  # the later one has the later place
        self.evaluations[key] = evaluation

    def _cut(self, update: int) -> None:
        self.loss.cut(update)
        for curve in self.rewards.values():
            curve.cut(update)
        self.evaluations = {key: old for key, old in self.evaluations.items() if old.update <= update}


class Record:
    """Follows the record `events_file`; `summary` is what it contains so far."""

    def __init__(self, events_file: Path) -> None:
        self._events_file = events_file
        self._offset = 0
        self._file_id = 0
        self.summary = Summary()

    def read_new(self) -> None:
        """Read what the record has gained; all of it, if it was replaced. Raises OSError, and ValueError."""
        status = self._events_file.lstat() if self._events_file.exists() else None
        size, file_id = (status.st_size, status.st_ino) if status else (0, 0)
        if size < self._offset or file_id != self._file_id:
            self.summary, self._offset, self._file_id = Summary(), 0, file_id
        while self._offset < size:
            events, offset = read_complete(self._events_file, self._offset, limit_bytes=_SLICE_BYTES)
            if offset == self._offset:
                return  # its last line is incomplete
            for event in events:
                self.summary.add(event)
            self._offset = offset
