"""Whether and why a session should stop now."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from shoestring.base.errors import Interruption, ShoestringError
from shoestring.training.session.deadline import Deadline
from shoestring.training.session.signals import StopSignals


class SessionOver(Interruption):
    """Raised when it is time to stop, by loops that cannot return early, such as an evaluation in progress.

    If the work would not fit into any later session either, `error` is set; it is raised after the state is saved.
    """

    def __init__(self, reason: str, error: ShoestringError | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.error = error


@dataclass(frozen=True, kw_only=True)
class Stop:
    """The conditions to stop, which every loop of a run polls."""

    deadline: Deadline
    signals: StopSignals

    def reason(self) -> str | None:
        """Return the reason to stop; None if there is none."""
        if self.signals.received:
            return self.signals.received
        return self.deadline.limit_text() if self.deadline.reached() else None

    def check(self) -> None:
        """Raise SessionOver if it is time to stop."""
        if reason := self.reason():
            raise SessionOver(reason)

    @contextmanager
    def interrupting(self) -> Iterator[None]:
        """Raise SessionOver in the body as soon as it is time to stop, without polling.

        For work that does not change the run and cannot poll, such as a recipe loading its data. It has no effect
        outside the main thread, where Python handles no signals, and under a limit shorter than the time to stop: no
        session can meet such a limit, and a first checkpoint is more useful.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        seconds = self._seconds_left()

        def raise_session_over(*_: object) -> None:
            raise SessionOver(self.deadline.limit_text())

        previous_handler: Any = signal.signal(signal.SIGALRM, raise_session_over)
        try:
            with self.signals.raise_on_signal(SessionOver):
                if seconds is not None:
                    self.check()
                    signal.setitimer(signal.ITIMER_REAL, seconds)
                yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, previous_handler)

    def _seconds_left(self) -> float | None:
        """Return the seconds until it is time to stop; None without a limit that can be met."""
        limit, stopping = self.deadline.limit_seconds, self.deadline.stopping_seconds()
        if limit is None or limit <= stopping:
            return None
        return max(1e-3, limit - stopping - self.deadline.elapsed())


@contextmanager
def session(limit_seconds: float | None = None, *, started: float | None = None) -> Iterator[Stop]:
    """Run a session of `limit_seconds` from the `time.monotonic()` value `started` (by default now), in any loop::

        with session(limit_seconds=9 * 3600) as stop:
            while more and not stop.reason():
                with stop.deadline.measure("update"):
                    step()
            save()

    Without `limit_seconds` there is no limit. SIGTERM, SIGINT and SIGHUP are reasons to stop as well. The value is a
    `Stop`: its `reason()` is a text as soon as it is time to stop, early enough for the work that `deadline.measure`
    has timed; before that it is None.
    """
    with StopSignals() as signals:
        yield Stop(deadline=Deadline(limit_seconds, started=started), signals=signals)
