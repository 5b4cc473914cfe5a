"""How long the rest of a chain takes: the plan that it began with, made again from what its sessions have measured.

The first plan may have had other data in mind than the sessions found, and predicted speeds. A session leaves the plan
that it made from the real data, and its events. The remaining sessions are computed from them as a plan computes them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any, Literal

from shoestring.base.errors import UsageError
from shoestring.base.reading import MAX_COUNT, number, read_json
from shoestring.base.units import count_text, plural, seconds_text
from shoestring.hardware.targets import find as find_target
from shoestring.planning.estimate.span import Span
from shoestring.planning.sessions import PlannedSession, Work, sessions
from shoestring.remote.kaggle.chain_file import ChainState
from shoestring.remote.kaggle.fetching import RUN
from shoestring.remote.kaggle.job import hand_over_seconds
from shoestring.training.checkpoint.files import write_json
from shoestring.training.monitor.events import Event, read
from shoestring.training.run_directory.directory import RunDirectory

PLAN = "plan.json"
"""In `DIR/kaggle`: the plan that the chain began with."""

_SAME_DATA = 0.02
"""The largest share by which the updates of the run and those of the plan differ, if they are of the same data."""
_MAX_SESSIONS = 1000
"""Of a chain; only damaged files have more."""
_MAX_SECONDS = 1e6
"""Of an update: likewise."""


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """The rest of a chain."""

    updates: int
    """The updates of the newest output that the chain continues from."""
    total_updates: int | None
    """The updates of the whole run: those of the plan until a session has found how many they are."""
    planned_total_updates: int | None
    """Those of the plan that the chain began with; null if it is not there."""
    update_seconds: float | None
    """The measured seconds of an update; null before a session has measured them."""
    planned_update_seconds: float | None
    """Those of the plan that the chain began with."""
    planned_sessions: int | None
    """Its sessions."""
    sessions_left: int | None
    """The sessions after that output; null if they cannot be computed."""
    hours_left: float | None
    """The hours that they take together."""
    source: Literal["plan", "measured"]
    """What the remaining time is computed from: `plan`, or `measured` if a session has measured its speed."""

    @property
    def has_other_data(self) -> bool:
        """Whether the run has another number of updates than was planned."""
        planned, total = self.planned_total_updates, self.total_updates
        return bool(planned and total and abs(total - planned) > _SAME_DATA * planned)

    def json(self) -> dict[str, Any]:
        """Return the forecast as JSON.

        Keys:
            text (text): the same for people; more than one line if the data are not those of the plan
        """
        return {**dataclasses.asdict(self), "text": self.text}

    @property
    def text(self) -> str:
        is_known = self.sessions_left is not None and self.hours_left is not None
        duration = seconds_text((self.hours_left or 0.0) * 3600)
        if self.source == "plan" and not self.updates:
            lines = [f"{self._planned_text}{f', {duration}' if is_known else ''}; nothing is measured yet"]
        else:
            seconds = self.update_seconds
            measured = "nothing is measured yet" if seconds is None else f"measured {seconds_text(seconds)}"
            remaining = (
                f": {plural(self.sessions_left, 'more session')}, {duration}" if is_known and self.sessions_left else ""
            )
            lines = ["; ".join(filter(None, (self._planned_text, measured))) + remaining]
        if self.has_other_data:
            assert self.planned_total_updates and self.total_updates
            lines.append(
                f"the plan assumed {count_text(self.planned_total_updates)} updates, but with the data of the sessions "
                f"the run has {count_text(self.total_updates)}"
            )
        return "\n".join(lines)

    @property
    def _planned_text(self) -> str:
        if not self.planned_total_updates or self.planned_update_seconds is None or self.planned_sessions is None:
            return "" if self.source == "measured" else "planned without a known time"
        return (
            f"planned {plural(self.planned_sessions, 'session')} for {count_text(self.planned_total_updates)} updates "
            f"of {seconds_text(self.planned_update_seconds)}"
        )


def write_first_plan(folder: Path, plan: Mapping[str, Any]) -> None:
    """Store the plan that a chain begins with (`Plan.json()`) in its folder. Raises OSError."""
    write_json(folder / PLAN, plan)


def forecast(state: ChainState, folder: Path) -> Forecast | None:
    """Return what is known of the rest of a chain from the files in its folder; None if nothing is."""
    first = _Planned(_read_plan(folder / PLAN))
    run = RunDirectory(folder / RUN)
    of_run, measured = _Planned(_stored_plan(run)), _measure(run)
    output = state.newest_output
    updates = output.update or 0 if output else 0
    totals = [session.total_updates for session in state.sessions if session.total_updates]
    total = totals[-1] if totals else of_run.total_updates or first.total_updates
    work = of_run.work or first.work
    if measured is not None:
        work = measured.replaced_in(work or Work(update={}))
    elif work is None:
        return None
    left = _sessions_left(state, work, updates, total, of_run.updates_per_epoch or first.updates_per_epoch)
    return Forecast(
        updates=updates,
        total_updates=total,
        planned_total_updates=first.total_updates,
        update_seconds=measured.update_seconds if measured else None,
        planned_update_seconds=first.update_seconds,
        planned_sessions=first.sessions,
        sessions_left=None if left is None else len(left),
        hours_left=None if left is None else sum(session.hours for session in left),
        source="measured" if measured else "plan",
    )


def _sessions_left(
    state: ChainState, work: Work, updates: int, total: int | None, updates_per_epoch: int | None
) -> list[PlannedSession] | None:
    """Return the sessions of the remaining updates, each of which is as long as the chain allows."""
    if state.status == "finished":
        return []
    if total is None or not any(span.seconds for span in work.update.values()):
        return None
    limit = state.limit_seconds - hand_over_seconds(state.limit_seconds)
    platform = find_target(state.on).platform
    return sessions(
        dataclasses.replace(work, first=work.restart) if updates else work,
        total_updates=max(0, total - updates),
        updates_per_epoch=updates_per_epoch or total,
        session_hours=limit / 3600,
        weekly_hours=platform.weekly_gpu_hours if platform else None,
        max_sessions=_MAX_SESSIONS,
    )


class _Planned:
    """What a plan (`Plan.json()`), which may be damaged, says of the time."""

    def __init__(self, plan: Mapping[str, Any]) -> None:
        time = plan.get("time")
        self._time: Mapping[str, Any] = time if isinstance(time, dict) else {}
        self.update_seconds = number(self._time.get("update_seconds"))
        self.updates_per_epoch = self._updates("epoch_seconds")
        self.total_updates = self._updates("total_seconds")
        planned_sessions = plan.get("sessions")
        self.sessions = len(planned_sessions) if isinstance(planned_sessions, list) and planned_sessions else None
        self.work: Work | None = None
        with suppress(ValueError):
            self.work = Work.from_json(plan.get("work") or {})

    def _updates(self, name: str) -> int | None:
        """Return how many updates take the seconds of this name."""
        seconds = number(self._time.get(name))
        if not seconds or not self.update_seconds:
            return None
        updates = seconds / self.update_seconds
        return round(updates) if 1 <= updates <= MAX_COUNT else None


@dataclass(frozen=True, kw_only=True)
class _Measured:
    update_seconds: float
    start_seconds: float | None
    epoch_end_seconds: Mapping[str, float]
    """What follows an epoch, by the names of `Work.epoch_end`."""

    def replaced_in(self, work: Work) -> Work:
        """Return the durations of a run with the measured ones in place of the planned."""
        epoch_end = {name: Span.exactly(seconds) for name, seconds in self.epoch_end_seconds.items()}
        start = {} if self.start_seconds is None else {"starting": Span.exactly(self.start_seconds)}
        return dataclasses.replace(
            work,
            update={"measured": Span.exactly(self.update_seconds)},
            epoch_end={**work.epoch_end, **epoch_end},
            start={**work.start, **start},
        )


def _measure(run: RunDirectory) -> _Measured | None:
    """Return the mean durations in the events of a run; None if it has made no update."""
    events: list[Event] = []
    with suppress(UsageError):
        events = list(read(run.events_file))
    update_seconds = _update_seconds(events)
    if update_seconds is None:
        return None
    epoch_ends = {
        "evaluation": _mean(events, "evaluation", "seconds", part="validation"),
        "answers": _mean(events, "answers", "seconds"),
    }
    return _Measured(
        update_seconds=update_seconds,
        start_seconds=_mean(events, "session", "startup_seconds"),
        epoch_end_seconds={name: seconds for name, seconds in epoch_ends.items() if seconds is not None},
    )


def _update_seconds(events: Iterable[Event]) -> float | None:
    """Return the mean seconds of an update, without the first measurement of each session, which has one-time work."""
    first: list[tuple[float, float]] = []
    later: list[tuple[float, float]] = []
    is_first = True
    for event in events:
        if event["event"] == "session":
            is_first = True
        elif event["event"] == "progress":
            updates, seconds = number(event.get("updates")), number(event.get("seconds"))
            if updates and seconds and min(updates, seconds) > 0:
                (first if is_first else later).append((updates, seconds))
            is_first = False
    updates, seconds = (sum(column) for column in zip(*(later or first or [(0.0, 0.0)]), strict=True))
    return seconds / updates if updates and seconds < _MAX_SECONDS * updates else None


def _mean(events: Iterable[Event], kind: str, name: str, **fields: str) -> float | None:
    """Return the mean of a number in the events of a kind whose fields have these values."""
    values = [
        value
        for event in events
        if event["event"] == kind and all(event.get(field) == text for field, text in fields.items())
        if (value := number(event.get(name))) is not None and value >= 0
    ]
    return mean(values) if values else None


def _read_plan(file: Path) -> Mapping[str, Any]:
    with suppress(OSError, ValueError):  # a chain of an earlier version has none
        value = read_json(file)
        return value if isinstance(value, dict) else {}
    return {}


def _stored_plan(run: RunDirectory) -> Mapping[str, Any]:
    with suppress(UsageError):
        stored = run.plan()
        return (stored.plan if stored else None) or {}
    return {}
