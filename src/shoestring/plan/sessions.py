"""The sessions and weeks of a run, computed from its seconds."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

START_SECONDS = 60.0
"""An allowance for imports, the plan's check, and loading data and checkpoint, to be replaced by a measurement."""
STOP_SECONDS = 60.0
"""An allowance for the last save and stopping: the deadline's margin in a long session (session/deadline.py)."""
SAVING_SHARE = 0.02
"""The share of the time that saving takes by default (train/saving.py)."""
DISK_BYTES_PER_SECOND = 100e6
"""The assumed rate of writing the last save: slow for a local disk, about right for a network disk."""
_SHORTEST = 1800.0
"""The shortest remainder of a week's quota, in seconds, that is used for a session."""


@dataclass(frozen=True, kw_only=True)
class PlannedSession:
    """A session of the run."""

    hours: float
    """The duration, with starting, evaluating, saving and stopping."""
    updates: int
    """The number of updates that the session makes."""
    epochs: float
    """The same in epochs, which need not be a whole number."""


@dataclass(frozen=True, kw_only=True)
class PlannedWeek:
    """The run's use of a platform's quota in one week; the first week is number 1."""

    week: int
    """The number of the week, from 1."""
    sessions: int
    """The number of sessions in the week."""
    hours: float
    """The hours that they take."""


def shortest_session_seconds(update_seconds: float, save_bytes: int = 0) -> float:
    """Return the duration of the shortest useful session: starting, one update, saving it, and stopping."""
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
    """Return the sessions for `total_updates`; None if a session is too short for a single update and its save.

    `session_hours` of None means no limit: one session. Each session starts, trains, evaluates for
    `evaluation_seconds` after each epoch, and reserves the time for a last save. A session ends at the end of the
    week's quota; a remainder of the quota that is too short for a useful session is not used.
    """
    seconds_per_update = (update_seconds + evaluation_seconds / updates_per_epoch) / (1 - SAVING_SHARE)
    overhead = START_SECONDS + STOP_SECONDS + save_bytes / DISK_BYTES_PER_SECOND

    def updates_in(seconds: float) -> int:
        return math.floor((seconds - overhead) / seconds_per_update)

    limit = math.inf if session_hours is None else session_hours * 3600
    week = math.inf if weekly_hours is None else weekly_hours * 3600
    if not math.isinf(min(limit, week)) and updates_in(min(limit, week)) < 1:
        return None
    planned = []
    remaining_updates, remaining_quota = total_updates, week
    while remaining_updates > 0:
        if remaining_quota < min(limit, week, _SHORTEST) or (
            remaining_quota < limit and updates_in(remaining_quota) < 1
        ):
            remaining_quota = week
        available = min(limit, remaining_quota)
        updates = remaining_updates if math.isinf(available) else min(remaining_updates, updates_in(available))
        seconds = updates * seconds_per_update + overhead
        planned.append(PlannedSession(hours=seconds / 3600, updates=updates, epochs=updates / updates_per_epoch))
        remaining_updates -= updates
        remaining_quota -= seconds
    return planned


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
