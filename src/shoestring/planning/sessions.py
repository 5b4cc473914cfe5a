"""The sessions and weeks of a run, computed from the durations of what it does."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shoestring.base.reading import number
from shoestring.base.run_limits import stop_seconds
from shoestring.planning.estimate.span import NOTHING, Span, total

WAITING = "waiting for data"
"""The part of an update in which it waits for its data."""

_SHORTEST = 1800.0
"""The shortest remainder of a week's quota, in seconds, that is used for a session."""


Parts = Mapping[str, Span]
"""Durations by the names of what takes them."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """The durations of what a run does, each by its parts."""

    update: Parts
    """Of an update."""
    epoch_end: Parts = field(default_factory=dict)
    """Of what follows an epoch: evaluation, answers to held-out prompts, saving the best weights."""
    start: Parts = field(default_factory=dict)
    """Of the start of each session, up to its first update."""
    first: Parts = field(default_factory=dict)
    """Of what the first session does in addition, before its first update."""
    restart: Parts = field(default_factory=dict)
    """Of what each later session does in addition, before its first update."""
    stop: Parts = field(default_factory=dict)
    """Of the end of each session: the last save."""
    last: Parts = field(default_factory=dict)
    """Of what the last session does after the last update: the evaluation of the test data."""
    saving_share: Span = NOTHING
    """The share of the time of updates in addition to it, in which they wait for checkpoints."""
    unknown: Mapping[str, str] = field(default_factory=dict)
    """What else the run does, whose duration is not known: by its name, what would make it known."""

    def json(self) -> dict[str, Any]:
        """Return the durations as JSON, from which `from_json` makes them again.

        Keys:
            update (list of objects): an update by its parts, each as those of `sessions.parts`
            epoch_end (list of objects): what follows an epoch
            start (list of objects): the start of each session
            first (list of objects): what the first session does before its first update
            restart (list of objects): what each later session does before its first update
            stop (list of objects): the end of each session
            last (list of objects): what follows the last update
            saving_share (object): the share of the time of updates in addition to it, in which they wait for saves
            saving_share.seconds (number): the expected share
            saving_share.low_seconds (number): its lower bound
            saving_share.high_seconds (number): its upper bound
        """
        return {**{name: parts_json(getattr(self, name)) for name in _PARTS}, "saving_share": self.saving_share.json()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Work:
        """Return the durations of `json`, without what is unknown. Raises ValueError for other values."""
        try:
            durations: dict[str, Any] = {name: {part["name"]: _span(part) for part in values[name]} for name in _PARTS}
            return cls(**durations, saving_share=_span(values["saving_share"]))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not the durations of a run: {error!r}") from error


_PARTS = ("update", "epoch_end", "start", "first", "restart", "stop", "last")


def _span(values: Mapping[str, Any]) -> Span:
    seconds = [number(values[name]) for name in ("seconds", "low_seconds", "high_seconds")]
    if any(value is None or value < 0 for value in seconds):
        raise ValueError("a duration is not a number of seconds")
    return Span(*(value for value in seconds if value is not None))


@dataclass(frozen=True, kw_only=True)
class PlannedSession:
    """A session of the run."""

    hours: float
    """The duration, with everything that it does."""
    updates: int
    """The number of updates that the session makes."""
    epochs: float
    """The same in epochs, which need not be a whole number."""
    parts: Parts = field(default_factory=dict)
    """The duration by its parts, in seconds with ranges."""

    def json(self) -> dict[str, Any]:
        """Return the session as JSON.

        Keys:
            parts (list of objects): what the session does
            parts.name (text): its name
            parts.seconds (number): the seconds that it takes
            parts.low_seconds (number): their lower bound
            parts.high_seconds (number): their upper bound
        """
        return {
            "hours": self.hours,
            "updates": self.updates,
            "epochs": self.epochs,
            "parts": parts_json(self.parts),
        }


@dataclass(frozen=True, kw_only=True)
class PlannedWeek:
    """The run's use of a platform's quota in one week; the first week is number 1."""

    week: int
    """The number of the week, from 1."""
    sessions: int
    """The number of sessions in the week."""
    hours: float
    """The hours that they take."""


def parts_json(parts: Parts) -> list[dict[str, Any]]:
    """Return durations as JSON, in their order."""
    return [{"name": name, **span.json()} for name, span in parts.items()]


def added(*groups: Parts) -> dict[str, Span]:
    """Return the sum of durations by their parts."""
    result: dict[str, Span] = {}
    for parts in groups:
        for name, span in parts.items():
            result[name] = result.get(name, NOTHING) + span
    return result


def times(parts: Parts, count: float) -> dict[str, Span]:
    """Return the durations of doing it so many times."""
    return {name: span * count for name, span in parts.items()} if count else {}


def shortest_session_seconds(work: Work, updates_per_epoch: float, limit_seconds: float) -> float:
    """Return the duration of the shortest useful session: starting, one update, saving it, and the time to stop before
    its limit.
    """
    begins = max(_seconds(work.first), _seconds(work.restart))
    edges = _seconds(work.start) + begins + _seconds(work.stop)
    return stop_seconds(limit_seconds) + edges + _per_update(work, updates_per_epoch)


def session_parts(work: Work, updates: int, epochs: float, *, is_first: bool = True, is_last: bool = True) -> Parts:
    """Return what a session of so many updates and epochs does."""
    training = times(work.update, updates)
    saving = total(training.values()).scaled(work.saving_share)
    return added(
        work.start,
        work.first if is_first else work.restart,
        training,
        times(work.epoch_end, epochs),
        {"saving": saving} if saving.high else {},
        work.last if is_last else {},
        work.stop,
    )


def sessions(
    work: Work,
    *,
    total_updates: int,
    updates_per_epoch: int,
    session_hours: float | None,
    weekly_hours: float | None = None,
    max_sessions: float = math.inf,
) -> list[PlannedSession] | None:
    """Return the sessions for `total_updates`; None if a session is too short for a single update and its save, or if
    there are more than `max_sessions`.

    `session_hours` of None means no limit: one session. A session that does not finish the run ends before its limit
    (`stop_seconds`). A session ends at the end of the week's quota; a remainder of the quota that is too short for a
    useful session is not used.
    """
    per_update = _per_update(work, updates_per_epoch)
    last_seconds = _seconds(work.last)

    limit = math.inf if session_hours is None else session_hours * 3600
    week = math.inf if weekly_hours is None else weekly_hours * 3600
    margin = stop_seconds(min(limit, week))

    def overhead(is_first: bool) -> float:
        return margin + _seconds(added(work.start, work.first if is_first else work.restart, work.stop))

    def updates_in(seconds: float, is_first: bool) -> int:
        return math.floor((seconds - overhead(is_first)) / per_update) if per_update else total_updates

    if not math.isinf(min(limit, week)) and min(updates_in(min(limit, week), first) for first in (True, False)) < 1:
        return None
    planned: list[PlannedSession] = []
    remaining_updates, remaining_quota, is_finished = total_updates, week, False
    while not is_finished:
        if len(planned) >= max_sessions:
            return None
        is_first = not planned
        if remaining_quota < min(limit, week, _SHORTEST) or (
            remaining_quota < limit and updates_in(remaining_quota, is_first) < 1
        ):
            remaining_quota = week
        available = min(limit, remaining_quota)
        updates = (
            remaining_updates if math.isinf(available) else min(remaining_updates, updates_in(available, is_first))
        )
        needed = overhead(is_first) + updates * per_update + last_seconds
        # An evaluation of the test data that no session has the time for is not waited for again and again.
        is_finished = updates == remaining_updates and (needed <= available or not updates)
        epochs = updates / updates_per_epoch
        parts = session_parts(work, updates, epochs, is_first=is_first, is_last=is_finished)
        seconds = _seconds(parts)
        planned.append(PlannedSession(hours=seconds / 3600, updates=updates, epochs=epochs, parts=parts))
        remaining_updates -= updates
        remaining_quota -= seconds
    return planned


def _seconds(parts: Parts) -> float:
    return total(parts.values()).seconds


def _per_update(work: Work, updates_per_epoch: float) -> float:
    """Return the seconds of an update with its share of what follows an epoch and of saving."""
    return _seconds(work.update) * (1 + work.saving_share.seconds) + _seconds(work.epoch_end) / updates_per_epoch


def weeks(planned: Sequence[PlannedSession], weekly_hours: float | None) -> list[PlannedWeek]:
    """Group the sessions by the weeks of the quota; return [] if there is no quota.

    Sessions are cut to fit the weeks, so a session that does not fit into the current week belongs to the next one.
    """
    if weekly_hours is None:
        return []
    calendar: list[PlannedWeek] = []
    for session in planned:
        week = calendar[-1] if calendar else None
        if week is None or week.hours + session.hours > weekly_hours * (1 + 1e-9):
            calendar.append(PlannedWeek(week=len(calendar) + 1, sessions=1, hours=session.hours))
        else:
            calendar[-1] = PlannedWeek(week=week.week, sessions=week.sessions + 1, hours=week.hours + session.hours)
    return calendar
