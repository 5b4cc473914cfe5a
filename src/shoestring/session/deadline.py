"""When this session must stop: before its limit, by as much as stopping itself will take."""

import time
from collections import defaultdict, deque
from collections.abc import Callable

from shoestring.units import seconds_text

_REMEMBERED = 200  # durations of each kind; old ones tell little about the next


class Deadline:
    """A session's end, learnt while it runs. Usable in any loop::

        deadline = Deadline(limit_seconds=12 * 3600)
        for batch in loader:
            if deadline.reached():
                save(); break
            with deadline.measure("update"):
                step(batch)

    What stopping costs is the 95th percentile of each kind of work that was measured: the piece of work under way and
    the save that follows it both have to fit.
    """

    def __init__(
        self,
        limit_seconds: float | None,
        *,
        started: float | None = None,
        margin_seconds: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """The session began when the clock said `started`, by default now; `margin_seconds` are kept for leaving.

        The margin is 2% of the limit, at least 3 s (leaving Python and torch took 1.2 s on a busy machine) and at most
        60 s, unless said otherwise.
        """
        self.limit_seconds = limit_seconds
        self._clock = clock
        self._started = clock() if started is None else started
        if margin_seconds is None:
            margin_seconds = min(60.0, max(3.0, 0.02 * limit_seconds)) if limit_seconds else 0.0
        self._margin = margin_seconds
        self.startup_seconds: float | None = None
        """Until the first work that was measured."""
        self.seconds_per_sample: dict[str, float] = {}
        """Of work that cannot be paused, by its kind."""
        self._durations: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=_REMEMBERED))
        self._longest: dict[str, float] = {}

    def elapsed(self) -> float:
        """Seconds since the session started."""
        return self._clock() - self._started

    def remaining(self) -> float | None:
        """Seconds until the limit, None without one."""
        return None if self.limit_seconds is None else self.limit_seconds - self.elapsed()

    def stopping_seconds(self) -> float:
        """Seconds to keep for finishing the work under way, saving and leaving."""
        return self._margin + sum(percentile_95(durations) for durations in self._durations.values())

    def reached(self) -> bool:
        """True once it is time to stop."""
        remaining = self.remaining()
        if remaining is None or remaining > self._margin + sum(self._longest.values()):
            return False  # far from it, as nearly always: nothing is sorted for that
        return remaining <= self.stopping_seconds()

    def limit_text(self) -> str:
        """The limit, as the reason for a pause."""
        return f"session limit of {seconds_text(self.limit_seconds or 0.0)}"

    def observe(self, kind: str, seconds: float) -> None:
        """Remember how long one piece of work of this kind took."""
        self._durations[kind].append(seconds)
        self._longest[kind] = max(seconds, self._longest.get(kind, 0.0))

    def measure(self, kind: str) -> "_Measured":
        """A context manager that observes how long its body took."""
        if self.startup_seconds is None:
            self.startup_seconds = self.elapsed()
        return _Measured(self, kind, self._clock)


class _Measured:
    def __init__(self, deadline: Deadline, kind: str, clock: Callable[[], float]) -> None:
        self._deadline, self._kind, self._clock = deadline, kind, clock
        self.seconds = 0.0

    def __enter__(self) -> "_Measured":
        self._entered = self._clock()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = self._clock() - self._entered
        self._deadline.observe(self._kind, self.seconds)


def percentile_95(durations: "deque[float]") -> float:
    """The 95th percentile, rounded up to one that was seen; 0 for none."""
    ordered = sorted(durations)
    return ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))] if ordered else 0.0
