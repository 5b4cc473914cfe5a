"""From seconds to sessions: how many it takes, and what each of them does."""

import math
from dataclasses import dataclass

START_SECONDS = 60.0
"""Imports, the plan's check, loading data and checkpoint. An allowance, to be replaced by what a run measures."""
STOP_SECONDS = 60.0
"""The last save and leaving: the deadline's margin on a long session (session/deadline.py)."""
SAVING_SHARE = 0.02
"""Of the time goes into saving by default (train/saving.py)."""


@dataclass(frozen=True, kw_only=True)
class PlannedSession:
    """One stretch of wall-clock of the run."""

    hours: float
    updates: int
    epochs: float


def sessions(
    *, total_updates: int, updates_per_epoch: int, update_seconds: float, session_hours: float | None
) -> list[PlannedSession] | None:
    """The sessions that `total_updates` take; None when a session is too short for a single update.

    `session_hours` None is a machine without a limit: one session.
    """
    seconds_each = update_seconds / (1 - SAVING_SHARE)
    per_session = total_updates
    if session_hours is not None:
        per_session = math.floor((session_hours * 3600 - START_SECONDS - STOP_SECONDS) / seconds_each)
        if per_session < 1:
            return None
    planned = []
    left = total_updates
    while left > 0:
        updates = min(left, per_session)
        hours = (updates * seconds_each + START_SECONDS + STOP_SECONDS) / 3600
        planned.append(PlannedSession(hours=hours, updates=updates, epochs=updates / updates_per_epoch))
        left -= updates
    return planned
