"""The deadline of a session: it must stop early enough before its limit to finish, save and exit in time."""

import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable

from shoestring.base.run_limits import stop_seconds
from shoestring.base.units import seconds_text

_MAX_DURATIONS = 200  # durations retained for each kind of work; older ones say little about the next


class Deadline:
    """The end of a session, with the time to stop estimated from measured durations. Usable in any loop::

        deadline = Deadline(limit_seconds=12 * 3600)
        for batch in loader:
            if deadline.reached():
                save(); break
            with deadline.measure("update"):
                step(batch)

    The time reserved for stopping is the sum of the 95th percentiles of all kinds of work that were measured: the work
    in progress and the save that follows it both have to fit.
    """

    def __init__(
        self,
        limit_seconds: float | None,
        *,
        started: float | None = None,
        margin_seconds: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start the session at the time `started` of `clock`, by default now; reserve `margin_seconds` for exiting.

        The default margin is that of plans (`base.run_limits.stop_seconds`).
        """
        self.limit_seconds = limit_seconds
        self._clock = clock
        self._started = clock() if started is None else started
        if margin_seconds is None:
            margin_seconds = stop_seconds(limit_seconds) if limit_seconds else 0.0
        self._margin = margin_seconds
        self.startup_seconds: float | None = None
        """The time until the first measured work."""
        self.seconds_per_sample: dict[str, float] = {}
        """The speed of work that cannot be paused, by kind."""
        self.samples: Counter[str] = Counter()
        """The samples of such work so far, by kind."""
        self._durations: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=_MAX_DURATIONS))
        self._longest: dict[str, float] = {}

    def reserve(self, seconds: float) -> None:
        """Reserve at least `seconds` for stopping, such as the time that starting took on this machine, which shows how
        slow one-time work is here. The reserve is at most half of the time that remains, so that training can go on.
        """
        if (remaining := self.remaining()) is not None:
            self._margin = max(self._margin, min(seconds, remaining / 2))

    def elapsed(self) -> float:
        """Return the seconds since the session started."""
        return self._clock() - self._started

    def remaining(self) -> float | None:
        """Return the seconds until the limit; None without a limit."""
        return None if self.limit_seconds is None else self.limit_seconds - self.elapsed()

    def stopping_seconds(self) -> float:
        """Return the seconds to reserve for finishing the work in progress, saving and exiting."""
        return self._margin + sum(percentile_95(durations) for durations in self._durations.values())

    def reached(self) -> bool:
        """Return whether it is time to stop."""
        remaining = self.remaining()
        if remaining is None or remaining > self._margin + sum(self._longest.values()):
            return False  # the common case, which needs no percentile and so no sorting
        return remaining <= self.stopping_seconds()

    def limit_text(self) -> str:
        """Return the limit as the reason for a pause."""
        return f"session limit of {seconds_text(self.limit_seconds or 0.0)}"

    def observe(self, kind: str, seconds: float) -> None:
        """Record the duration of one piece of work of this kind."""
        self._durations[kind].append(seconds)
        self._longest[kind] = max(seconds, self._longest.get(kind, 0.0))

    def expect(self, kind: str, seconds: float) -> None:
        """Record the duration that work of this kind had in an earlier session, up to a third of this one: a session
        makes progress even after one in which the machine was stopped in the middle of a save.
        """
        self.observe(kind, seconds if self.limit_seconds is None else min(seconds, self.limit_seconds / 3))

    def has_observed(self, kind: str) -> bool:
        """Return whether the duration of work of this kind is known."""
        return bool(self._durations.get(kind))

    def measure(self, kind: str) -> "_Measurement":
        """Return a context manager that records the duration of its body."""
        if self.startup_seconds is None:
            self.startup_seconds = self.elapsed()
        return _Measurement(self, kind, self._clock)


class _Measurement:
    def __init__(self, deadline: Deadline, kind: str, clock: Callable[[], float]) -> None:
        self._deadline, self._kind, self._clock = deadline, kind, clock
        self.seconds = 0.0

    def __enter__(self) -> "_Measurement":
        self._start = self._clock()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = self._clock() - self._start
        self._deadline.observe(self._kind, self.seconds)


def percentile_95(durations: "deque[float]") -> float:
    """Return the 95th percentile, rounded up to an observed duration; 0 if there are none."""
    ordered = sorted(durations)
    return ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))] if ordered else 0.0


def seconds_to_end(limit_seconds: float) -> float:
    """Return the seconds before the limit that a process needs to end; the training process is killed then.

    A process that holds gigabytes takes a second to end, one with a context on a GPU several, and on a machine with a
    load of 11 on two cores killing it and writing the state took 1.3 s.
    """
    return min(10.0, max(2.0, 0.02 * limit_seconds))
