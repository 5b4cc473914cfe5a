"""From seconds to sessions and weeks: how many it takes, and what each of them does."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

START_SECONDS = 60.0
"""Imports, the plan's check, loading data and checkpoint. An allowance, to be replaced by what a run measures."""
STOP_SECONDS = 60.0
"""The last save and leaving: the deadline's margin on a long session (session/deadline.py)."""
SAVING_SHARE = 0.02
"""Of the time goes into saving by default (train/saving.py)."""
DISK_BYTES_PER_SECOND = 100e6
"""At which a last save is written; an assumption, slow for a local disk and about right for a network's."""
_SHORTEST = 1800.0
"""Seconds of a week's quota that are left and worth a session of their own."""


@dataclass(frozen=True, kw_only=True)
class PlannedSession:
    """One stretch of wall-clock of the run."""

    hours: float
    updates: int
    epochs: float


@dataclass(frozen=True, kw_only=True)
class PlannedWeek:
    """What of a platform's weekly quota the run takes; the first week is number 1."""

    week: int
    sessions: int
    hours: float


def shortest_session_seconds(update_seconds: float, save_bytes: int = 0) -> float:
    """Of a session that gets anything done: starting, one update, saving it and leaving."""
    return START_SECONDS + STOP_SECONDS + update_seconds / (1 - SAVING_SHARE) + save_bytes / DISK_BYTES_PER_SECOND


def sessions(
    *,
    total_updates: int,
    updates_per_epoch: int,
    update_seconds: float,
    session_hours: float | None,
    weekly_hours: float | None = None,
    evaluation_seconds: float = 0.0,
    save_bytes: int = 0,
) -> list[PlannedSession] | None:
    """The sessions that `total_updates` take; None when a session is too short for a single update and its save.

    `session_hours` None is a machine without a limit: one session. Each session starts, trains, evaluates for
    `evaluation_seconds` after each epoch, and keeps the time for a last save. A session ends where the week's quota
    does; what is left of that and too short to be worth starting is left.
    """
    seconds_each = (update_seconds + evaluation_seconds / updates_per_epoch) / (1 - SAVING_SHARE)
    around = START_SECONDS + STOP_SECONDS + save_bytes / DISK_BYTES_PER_SECOND

    def updates_in(seconds: float) -> int:
        return math.floor((seconds - around) / seconds_each)

    limit = math.inf if session_hours is None else session_hours * 3600
    week = math.inf if weekly_hours is None else weekly_hours * 3600
    if not math.isinf(min(limit, week)) and updates_in(min(limit, week)) < 1:
        return None
    planned = []
    left, left_of_week = total_updates, week
    while left > 0:
        if left_of_week < min(limit, week, _SHORTEST) or (left_of_week < limit and updates_in(left_of_week) < 1):
            left_of_week = week
        available = min(limit, left_of_week)
        updates = left if math.isinf(available) else min(left, updates_in(available))
        seconds = updates * seconds_each + around
        planned.append(PlannedSession(hours=seconds / 3600, updates=updates, epochs=updates / updates_per_epoch))
        left -= updates
        left_of_week -= seconds
    return planned


def weeks(planned: Sequence[PlannedSession], weekly_hours: float | None) -> list[PlannedWeek]:
    """The sessions by week of the quota; empty where there is none.

    Sessions were cut to fit the weeks, so one belongs to the next week when it does not fit this one.
    """
    if weekly_hours is None:
        return []
    found: list[PlannedWeek] = []
    for session in planned:
        week = found[-1] if found else None
        if week is None or week.hours + session.hours > weekly_hours * (1 + 1e-9):
            found.append(PlannedWeek(week=len(found) + 1, sessions=1, hours=session.hours))
        else:
            found[-1] = PlannedWeek(week=week.week, sessions=week.sessions + 1, hours=week.hours + session.hours)
    return found
