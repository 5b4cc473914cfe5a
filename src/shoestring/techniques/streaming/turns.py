"""Functions that take turns: each runs in a thread of its own, and one of all threads runs at a time.

A function gives up its turn in the middle of its calls, which a Python function can do in no other way. The caller
waits for each turn, so nothing runs at the same time.
"""

from __future__ import annotations

import contextvars
import threading
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Generic, TypeVar

T = TypeVar("T")


class Abandoned(BaseException):
    """Raised in a function whose caller does not continue it."""


class Suspendable(Generic[T]):
    """A function that may pause, and is continued by its caller."""

    def __init__(self, function: Callable[[], T], around: Callable[[], AbstractContextManager[object]] = nullcontext):
        """`around` returns the context in which the thread runs the function: state that belongs to a thread."""
        self._function, self._around = function, around
        self._may_run, self._has_paused = threading.Semaphore(0), threading.Semaphore(0)
        context = contextvars.copy_context()
        # A daemon: a loss that never returns must not keep the process from ending.
        self._thread = threading.Thread(target=context.run, args=(self._run,), name="microbatch", daemon=True)
        self._is_running = self._is_abandoned = False
        self._results: list[T] = []
        self._error: BaseException | None = None
        self.is_over = False
        """Whether the function has returned or raised an error."""

    def resume(self) -> None:
        """Run the function until it pauses or is over. Raises its error, with the traceback of its own."""
        if self._thread.ident is None:
            self._thread.start()
        self._is_running = True
        self._may_run.release()
        while self._is_running:
            self._has_paused.acquire()
        if self.is_over:
            self._thread.join()
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
        finally:
            del error  # its traceback has this frame, which would be a reference cycle that holds tensors

    def pause(self) -> None:
        """Give up the turn, in the function's thread. Raises Abandoned if the function is not continued."""
        if not self._is_abandoned:
            self._return_turn()
            self._may_run.acquire()
        if self._is_abandoned:
            raise Abandoned

    def take_result(self) -> T:
        """Return what the function has returned, once."""
        return self._results.pop()

    def close(self) -> None:
        """End the thread: where the function has paused, or pauses next after an interruption, it gets Abandoned."""
        self._is_abandoned = True
        self._may_run.release()
        if self._thread.ident is not None:
            self._thread.join()

    def _return_turn(self) -> None:
        self._is_running = False
        self._has_paused.release()

    def _run(self) -> None:
        self._may_run.acquire()
        try:
            with self._around():
                self._results.append(self._function())
        except BaseException as error:  # noqa: BLE001  (raised again in the thread of the caller)
            # What the frames hold ends in this thread, such as contexts in which autograd saves tensors.
            traceback.clear_frames(error.__traceback__)
            self._error = None if isinstance(error, Abandoned) else error
        finally:
            del self._function  # with the batch that it holds
            self.is_over = True
            self._return_turn()
