"""Signals set a flag and the loop polls it: a handler that saves can interrupt a step, or another save, midway."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any


class StopSignals:
    """Within it, SIGTERM and SIGINT ask the run to stop at its next safe place; a second one ends the process at once.

    Ending at once is safe as well: what is on disk is always whole. Outside the main thread, where Python cannot
    install handlers, it does nothing.
    """

    def __init__(self) -> None:
        self.received: str | None = None
        self._error: Callable[[str], BaseException] | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def raising(self, error: Callable[[str], BaseException]) -> Iterator[None]:
        """Within it a signal raises `error(its name)` where it arrives: for work that nothing is lost of.

        One that came before is raised on entry.
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
