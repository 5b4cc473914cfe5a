"""Signals that request a stop of the run.

The handlers only set a flag that the loop polls: a handler that saves could interrupt a step or another save.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import Any

from shoestring.base.signal_wait import wait_for_signal

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""SIGTERM from a scheduler, SIGINT from Ctrl-C, SIGHUP from a terminal that is closed."""

ONE_REQUEST_SECONDS = 2.0
"""Signals within this time of the first are one request: a terminal, a launcher and `timeout` may each send one."""


class StopSignals:
    """A context in which SIGTERM, SIGINT and SIGHUP request a stop at the next poll.

    A signal more than two seconds after the first ends the process at once. That is safe too, because the files on disk
    are always complete, but updates after the last checkpoint are lost. A SIGHUP that was ignored before, as under
    nohup, stays ignored. Outside the main thread, where Python cannot install handlers, the context has no effect.
    """

    is_supervised = False
    """Whether a supervisor ends this process at the second request: it knows when a signal arrived, but a handler runs
    only between two instructions of Python.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.received: str | None = None
        self.describe_loss: Callable[[], str] = lambda: "updates since the last checkpoint are lost"
        """Describes what is lost if the process ends at once, for the message."""
        self._clock = clock
        self._received_at = 0.0
        self._error: Callable[[str], BaseException] | None = None
        self._previous_handlers: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():
            for number in STOP_SIGNALS:
                if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                    continue
                self._previous_handlers[number] = signal.signal(number, self._receive)
            # A supervisor starts this process with these signals blocked.
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)

    @contextmanager
    def raise_on_signal(self, error: Callable[[str], BaseException]) -> Iterator[None]:
        """Raise `error(signal name)` in the body as soon as a signal arrives. For work that may be abandoned.

        A signal that was received before raises on entry.
        """
        self._error = error
        try:
            if self.received is not None:
                raise error(self.received)
            yield
        finally:
            self._error = None

    @contextmanager
    def polled(self) -> Iterator[None]:
        """Block the signals in the body, which calls `poll`: for code that must not be interrupted anywhere."""
        previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)

    def poll(self, seconds: float) -> None:
        """Wait so long for a signal, and receive it. Other threads of a program receive its signals themselves."""
        if threading.current_thread() is not threading.main_thread():
            time.sleep(seconds)
            return
        received = wait_for_signal(STOP_SIGNALS, seconds)
        if received and signal.getsignal(received) is not signal.SIG_IGN:
            self._receive(received, None)

    def _receive(self, number: int, _: FrameType | None) -> None:
        if self.received is None:
            self.received, self._received_at = signal.Signals(number).name, self._clock()
            if self._error is not None:
                raise self._error(self.received)
        elif not self.is_supervised and self._clock() - self._received_at > ONE_REQUEST_SECONDS:
            with suppress(OSError):  # standard error may be closed
                os.write(2, f"{signal.Signals(number).name}: ending at once; {self.describe_loss()}\n".encode())
            signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
            os.kill(os.getpid(), number)
