"""When to save: rarely enough to cost little, and often enough that a kill never costs more than one interval.

A kill costs the work since the state of the newest complete checkpoint on the disk. So a save starts before the end of
the interval, by the time that recent saves took to write, and no update starts that would end after the interval.
"""

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from shoestring.base.settings import Settings

_MAX_SHARE = 0.02  # of the time that saving may cost
_MAX_SECONDS = 600.0  # of work that a kill may cost, unless the settings say otherwise
_RETRY_SECONDS = 10.0  # until a failed save is retried, twice as long after each further failure
_RECENT_SAVES = 3  # that predict how long the next one takes


@dataclass(frozen=True)
class _Position:
    """A state of training."""

    seconds: float
    """Of training until this state."""
    update: int
    """The number of completed updates."""


class SavePolicy:
    """Decides after each update whether a full checkpoint is due, and whether the next update may start before the
    pending save is complete.

    Work is counted in seconds, limited by `save_every_seconds`, and in updates, limited by `save_every_updates`; the
    limit that is reached first applies. Without `save_every_seconds` the limit is ten minutes, and a save starts
    earlier than that as soon as saving costs at most 2% of the time. Otherwise no save starts in the first half of the
    interval: if writing takes longer than half of it, training waits.
    """

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_updates = settings.save_every_updates or math.inf
        self._max_seconds = _MAX_SECONDS if settings.save_every_seconds is None else settings.save_every_seconds
        self._has_seconds_setting = settings.save_every_seconds is not None
        self._clock = clock
        self._stalled_seconds = 0.0
        self._saved = self._save_start = _Position(self._training_seconds(), 0)
        self._latest = self._save_start
        self._update_seconds = 0.0
        self._min_spacing = math.inf
        self._write_seconds: deque[float] = deque(maxlen=_RECENT_SAVES)
        self._retry_at = -math.inf
        self._failures = 0

    def resume(self, update: int) -> None:
        """Start from a restored checkpoint of `update`."""
        self._saved = self._save_start = self._latest = _Position(self._training_seconds(), update)

    def save_started(self, update: int) -> None:
        """Record the start of a save of the state after `update` updates."""
        self._save_start = _Position(self._training_seconds(), update)

    def save_completed(self, *, cost: float, write_seconds: float | None = None) -> None:
        """Record that the last started save is complete.

        `cost` is in seconds of training; `write_seconds` is how long it was written in the background, if it was.
        """
        self._failures = 0
        self._saved = self._save_start
        self._min_spacing = cost / _MAX_SHARE
        if write_seconds is not None:
            self._write_seconds.append(write_seconds)

    def save_failed(self) -> None:
        """Record that the last started save could not be written."""
        self._retry_at = self._clock() + min(_MAX_SECONDS, _RETRY_SECONDS * 2**self._failures)
        self._failures += 1
        self._save_start = self._saved

    def add_stall(self, seconds: float) -> None:
        """Exclude `seconds` in which training waited for a save: a kill loses no work of that time."""
        self._stalled_seconds += seconds

    def is_due(self, update: int) -> bool:
        """Return whether to save now, after `update` updates."""
        self._observe(update)
        if self._clock() < self._retry_at:
            return False
        seconds = self._training_seconds() - self._save_start.seconds
        updates = update - self._save_start.update
        if not self._has_seconds_setting and seconds >= max(self._min_spacing, *self._write_seconds, 0.0):
            return True
        second_half = seconds >= self._max_seconds / 2 or updates >= self._max_updates / 2
        # The first save starts at half of the interval, since its write time is unknown.
        write_seconds = max(self._write_seconds, default=math.inf)
        return second_half and self._seconds_left(self._save_start) <= write_seconds + 2 * self._update_seconds

    def must_wait(self, update: int) -> bool:
        """Return whether the next update must wait until the pending save is complete."""
        self._observe(update)
        return self._seconds_left(self._saved) < self._update_seconds

    def _seconds_left(self, position: _Position) -> float:
        """Return the seconds of training until a kill costs a whole interval, if `position` is the last saved one.

        Updates are assumed to take as long as the last one.
        """
        seconds = self._max_seconds - (self._training_seconds() - position.seconds)
        updates = self._max_updates - (self._latest.update - position.update)
        if updates < 1:
            return -math.inf
        return min(seconds, updates * self._update_seconds if updates < math.inf else math.inf)

    def _observe(self, update: int) -> None:
        """Measure how long the last update took, without the time since then that was spent on something else."""
        seconds = self._training_seconds()
        if update > self._latest.update:
            self._update_seconds = (seconds - self._latest.seconds) / (update - self._latest.update)
        self._latest = _Position(seconds, update)

    def _training_seconds(self) -> float:
        return self._clock() - self._stalled_seconds
