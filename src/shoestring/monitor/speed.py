"""How fast training goes now: an average in which the past fades, and what it says about the time left."""

import math


class Speed:
    """Updates and samples per second over about the last `memory_seconds`; `None` until it is known.

    The average is one of sums, not of rates, so that measurements of any length weigh by their time. The
    first is left out: it holds what happens once (kernels chosen, workers started).
    """

    def __init__(self, memory_seconds: float = 60.0) -> None:
        self._memory_seconds = memory_seconds
        self._started = False
        self._seconds = self._updates = self._samples = 0.0
        self._measured = self._beside = 0.0

    def add(self, *, updates: int, samples: int, seconds: float, beside: float = 0.0) -> None:
        """`updates` took `seconds`; before them `beside` went into something else, saves and evaluations."""
        if not self._started:
            self._started = True
            return
        self._measured += seconds
        self._beside += beside
        fade = math.exp(-seconds / self._memory_seconds)
        self._seconds = self._seconds * fade + seconds
        self._updates = self._updates * fade + updates
        self._samples = self._samples * fade + samples

    def samples_per_second(self) -> float | None:
        return self._samples / self._seconds if self._seconds else None

    def seconds_for(self, updates: int) -> float | None:
        """The time that so many more updates take at this speed, with as large a share beside them as so far."""
        if not self._updates:
            return None
        return updates * self._seconds / self._updates * (1 + self._beside / self._measured)
