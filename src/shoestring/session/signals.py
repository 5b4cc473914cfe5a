"""Signals that request a stop of the run.

The handlers only set a flag that the loop polls: a handler that saves could interrupt a step or another save.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any


class StopSignals:
    """A context in which SIGTERM and SIGINT request a stop at the next poll; a second signal ends the process at once.

    Ending at once is safe too: the files on disk are always complete. Outside the main thread, where Python cannot
    install handlers, the context has no effect.
    """

    def __init__(self) -> None:
        self.received: str | None = None
        self._error: Callable[[str], BaseException] | None = None
        self._previous_handlers: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._previous_handlers[number] = signal.signal(number, self._receive)
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

    def _receive(self, number: int, _: FrameType | None) -> None:
        if self.received is not None:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self.received = signal.Signals(number).name
        if self._error is not None:
            raise self._error(self.received)
