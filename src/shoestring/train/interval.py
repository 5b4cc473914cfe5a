"""When to save: seldom enough to cost little, and early enough that a kill never costs more than one interval.

What a kill costs is the work since the state of the newest checkpoint that is whole on the disk. So a save begins as
long before the interval is over as writing took lately, and no update begins that would end after it.
"""

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from shoestring.settings import Settings

_COST = 0.02  # of the time may go into saving
_LONGEST = 600.0  # seconds of work that a kill may cost, unless settings say otherwise
_AGAIN = 10.0  # seconds after which a save that failed is tried again, twice as many after each further one
_RECENT = 3  # saves that tell how long the next will take


@dataclass(frozen=True)
class _Place:
    """A state: when training had come there, in seconds of training, and with how many updates."""

    at: float
    update: int


class SavePolicy:
    """After each update: is a full checkpoint due, and may training go on before the one under way is whole?

    Work is counted in seconds of `save_every_seconds` and in updates of `save_every_updates`; whichever is over first.
    Without the first it is ten minutes, and saves begin as far apart as keeps what one costs at 2% of the time where
    that is less. None begins before half of the interval: where writing takes longer than that, training waits.
    """

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self._most_updates = settings.save_every_updates or math.inf
        self._most_seconds = _LONGEST if settings.save_every_seconds is None else settings.save_every_seconds
        self._asked = settings.save_every_seconds is not None
        self._clock = clock
        self._stood = 0.0
        self._whole = self._begun = _Place(self._trained(), 0)
        self._seen = self._begun
        self._update_seconds = 0.0
        self._costs = math.inf
        self._writing: deque[float] = deque(maxlen=_RECENT)
        self._not_before = -math.inf
        self._failures = 0

    def restored(self, update: int) -> None:
        """Training goes on from a checkpoint."""
        self._whole = self._begun = self._seen = _Place(self._trained(), update)

    def began(self, update: int) -> None:
        """A save of the state after `update` updates begins."""
        self._begun = _Place(self._trained(), update)

    def saved(self, *, cost: float, writing: float | None = None) -> None:
        """The save that began last is whole: it cost so many seconds of training, and was written beside training in
        `writing` seconds, if it was.
        """
        self._failures = 0
        self._whole = self._begun
        self._costs = cost / _COST
        if writing is not None:
            self._writing.append(writing)

    def failed(self) -> None:
        """The save that began last could not be written."""
        self._not_before = self._clock() + min(_LONGEST, _AGAIN * 2**self._failures)
        self._failures += 1
        self._begun = self._whole

    def stood(self, seconds: float) -> None:
        """Training stood still for a save: nothing was done that a kill could cost."""
        self._stood += seconds

    def due(self, update: int) -> bool:
        """Whether to save now that `update` updates are done."""
        self._look(update)
        if self._clock() < self._not_before:
            return False
        since = self._trained() - self._begun.at, update - self._begun.update
        if not self._asked and since[0] >= max(self._costs, *self._writing, 0.0):
            return True
        half = since[0] >= self._most_seconds / 2 or since[1] >= self._most_updates / 2
        takes = max(self._writing, default=math.inf)  # the first is early enough whatever it takes
        return half and self._left(self._begun) <= takes + 2 * self._update_seconds

    def must_wait(self, update: int) -> bool:
        """Whether the next update must not begin before the save under way is whole."""
        self._look(update)
        return self._left(self._whole) < self._update_seconds

    def _left(self, place: _Place) -> float:
        """Seconds of training, in updates like the last, until a kill would cost an interval if `place` were whole."""
        seconds = self._most_seconds - (self._trained() - place.at)
        updates = self._most_updates - (self._seen.update - place.update)
        if updates < 1:
            return -math.inf
        return min(seconds, updates * self._update_seconds if updates < math.inf else math.inf)

    def _look(self, update: int) -> None:
        """Learn how long the last update took; seconds spent on anything else since are none of it."""
        now = self._trained()
        if update > self._seen.update:
            self._update_seconds = (now - self._seen.at) / (update - self._seen.update)
        self._seen = _Place(now, update)

    def _trained(self) -> float:
        return self._clock() - self._stood
