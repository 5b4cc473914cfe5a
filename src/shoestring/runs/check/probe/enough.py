"""How much a probe measures: it ends as soon as there is enough, and before its time is over."""

from dataclasses import dataclass

LEAST_UPDATES = 3
"""The first includes one-time work, and so much of two others that they can be compared."""
MOST_UPDATES = 11
_UPDATES_SHARE = 1 / 3
"""The share of the budget after which no more than the least number of updates is made."""
_MOST_SHARE = 0.9
"""The share of the budget within which an update has to end, or it is not begun."""

_LEAST_PIECES = 3
_EVALUATION_SHARE = 1 / 6
_EVALUATION_SECONDS = 3.0


@dataclass(frozen=True)
class Budget:
    """The seconds of a probe, which began at the time `started`."""

    seconds: float
    started: float

    def has_updates(self, durations: list[float], time: float, least: int = LEAST_UPDATES) -> bool:
        """Return whether updates of these `durations` are enough, or another one would not end in time.

        At least `least` updates are made if they do.
        """
        if len(durations) >= max(MOST_UPDATES, least):
            return True
        if len(durations) >= least and sum(durations) > _UPDATES_SHARE * self.seconds:
            return True
        # Nobody knows from the first update, which includes one-time work, how long the second one takes.
        return not self.has_time_for(durations[-1] if len(durations) > 1 else 0.0, time)

    def has_time_for(self, seconds: float, time: float) -> bool:
        """Return whether work of so many seconds would end in time."""
        return time - self.started + seconds <= _MOST_SHARE * self.seconds

    def has_evaluation(self, durations: list[float], time: float) -> bool:
        """Return whether pieces of an evaluation of these `durations` are enough: cheap ones are all made."""
        if len(durations) >= _LEAST_PIECES:
            limit = min(_EVALUATION_SECONDS, _EVALUATION_SHARE * self.seconds)
            return sum(durations) > limit or not self.has_time_for(durations[-1], time)
        return not self.has_time_for(durations[-1], time)
