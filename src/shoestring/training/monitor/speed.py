"""The current training speed, as an exponentially weighted average, and the remaining time it predicts."""

import math


class Speed:
    """Updates and samples per second over about the last `memory_seconds`; `None` until two measurements exist.

    Sums are averaged instead of rates, so that every measurement is weighted by its duration. The first
    measurement is left out because it includes one-time work (kernel selection, starting workers).
    """

    def __init__(self, memory_seconds: float = 60.0) -> None:
        self._memory_seconds = memory_seconds
        self._started = False
        self._seconds = self._updates = self._samples = 0.0
        self._measured_seconds = self._other_seconds = 0.0

    def add(self, *, updates: int, samples: int, seconds: float, other_seconds: float = 0.0) -> None:
        """Add a measurement: `updates` took `seconds`, and saves and evaluations before them `other_seconds`."""
        if not self._started:
            self._started = True
            return
        self._measured_seconds += seconds
        self._other_seconds += other_seconds
        fade = math.exp(-seconds / self._memory_seconds)
        self._seconds = self._seconds * fade + seconds
        self._updates = self._updates * fade + updates
        self._samples = self._samples * fade + samples

    def samples_per_second(self) -> float | None:
        return self._samples / self._seconds if self._seconds else None

    def update_seconds(self) -> float | None:
        """Return the seconds of one update, without other work."""
        return self._seconds / self._updates if self._updates else None

    def seconds_for(self, updates: int) -> float | None:
        """Predict the seconds of `updates` more updates, including the same share of other work as so far."""
        if not self._updates:
            return None
        return updates * self._seconds / self._updates * (1 + self._other_seconds / self._measured_seconds)
