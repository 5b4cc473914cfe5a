"""Why a session should stop now, if it should."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from shoestring.errors import ShoestringError
from shoestring.session.deadline import Deadline
from shoestring.session.signals import StopSignals


class SessionOver(Exception):  # noqa: N818  (an event that unwinds a loop, not an error)
    """It is time to stop; raised by loops that cannot return early, such as an evaluation under way.

    Where no later session could do better, `error` says so: it is raised once the state is saved.
    """

    def __init__(self, reason: str, error: ShoestringError | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.error = error


@dataclass(frozen=True, kw_only=True)
class Stop:
    """Every loop of a run polls it."""

    deadline: Deadline
    signals: StopSignals

    def reason(self) -> str | None:
        """Why it is time to stop, or None."""
        if self.signals.received:
            return self.signals.received
        return self.deadline.limit_text() if self.deadline.reached() else None

    def check(self) -> None:
        """Raises SessionOver when it is time to stop."""
        if reason := self.reason():
            raise SessionOver(reason)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Within it SessionOver is raised at the instant when it is time to stop, wherever Python is just then.

        For work that changes nothing of the run and has no place to poll, such as a recipe's reading of its data.
        Without effect outside the main thread, where Python takes no signals, and under a limit that is shorter than
        stopping takes: no session keeps that one, and a first checkpoint is worth more.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        left = self._seconds_left()

        def over(*_: object) -> None:
            raise SessionOver(self.deadline.limit_text())

        before: Any = signal.signal(signal.SIGALRM, over)
        try:
            with self.signals.raising(SessionOver):
                if left is not None:
                    self.check()
                    signal.setitimer(signal.ITIMER_REAL, left)
                yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def _seconds_left(self) -> float | None:
        """Until it is time to stop; None where no limit can be kept."""
        limit, stopping = self.deadline.limit_seconds, self.deadline.stopping_seconds()
        if limit is None or limit <= stopping:
            return None
        return max(1e-3, limit - stopping - self.deadline.elapsed())


@contextmanager
def session(limit_seconds: float | None = None, *, started: float | None = None) -> Iterator[Stop]:
    """A session of `limit_seconds` since `time.monotonic()` said `started` (by default now), in any loop::

        with session(limit_seconds=9 * 3600) as stop:
            while more and not stop.reason():
                with stop.deadline.measure("update"):
                    step()
            save()

    SIGTERM and SIGINT are a reason to stop as well.
    """
    with StopSignals() as signals:
        yield Stop(deadline=Deadline(limit_seconds, started=started), signals=signals)
