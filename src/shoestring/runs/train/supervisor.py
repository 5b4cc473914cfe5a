"""The supervisor of a training process: a small process that never imports torch and that can end a session in time.

A training process stops by itself before its limit, but only between two pieces of Python code: an import, a kernel of
the GPU or a read from a disk that does not respond cannot be interrupted. The supervisor forwards signals to the
training process, and kills it if it has not ended at the limit.
"""

import atexit
import mmap
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from signal import Signals
from typing import Any, NoReturn

from shoestring.base import streams
from shoestring.base.processes import exit_with_parent, kill_with_descendants
from shoestring.base.signal_wait import wait_for_signal
from shoestring.training.engine.parallel.rank_channel import HEARTBEAT_POLL_SECONDS, Heartbeats
from shoestring.training.session.signals import ONE_REQUEST_SECONDS, STOP_SIGNALS, StopSignals

_LONGEST_WAIT_SECONDS = 1e6
"""The system rejects waiting times of centuries."""
_STATES = (signal.SIGCHLD, signal.SIGCONT)
"""Signals that tell this process of a change of the child's state, or of its own."""
_LATE_SECONDS = 10.0
"""A supervisor that sees the end so late has not run meanwhile (`docker pause`). The limit of the session, which is at
most 10 s after this end, has passed as well then."""
_AFTER_STOP_SECONDS = 300.0
"""For the training process to save and end, after both were stopped until after the limit: as much as the processes
of a run with several GPUs have after a requested stop."""


@dataclass(frozen=True, kw_only=True)
class ProcessEnd:
    """How the training process ended."""

    status: int
    """Its exit status, negative for a signal, as in `subprocess`."""
    at_limit: bool = False
    """Whether the supervisor killed it at the limit."""
    by_request: Signals | None = None
    """The signal at which the supervisor killed it, because it was the second request."""
    is_silent: bool = False
    """Whether the supervisor killed it because it gave no sign of life."""
    has_returned: bool = False
    """Whether its work had returned, or raised. After `os._exit` it has not, whatever the status."""


def supervise(work: Callable[[], int], kill_at: float | None, *, silence_seconds: float | None = None) -> ProcessEnd:
    """Run `work` in a forked child that exits with the status it returns, and return how the child ended.

    At `kill_at`, a value of `time.monotonic()`, the child and all its descendants are killed. If this process was
    stopped then (Ctrl-Z), the child had no chance to end in time, and gets some minutes. The first SIGTERM, SIGINT or
    SIGHUP is forwarded to the child; one that follows more than two seconds later kills the child. If this process is
    killed, so is the child. With `silence_seconds`, a child that has given no sign of life for so long is killed: it is
    one of several that train together, and the others wait for it.

    The child has these signals blocked until `StopSignals` handles them, so that none is lost while it starts.
    """
    watched_signals = {*_STATES, *STOP_SIGNALS}
    previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, watched_signals)
    heartbeats = None if silence_seconds is None else Heartbeats(silence_seconds)
    has_returned = mmap.mmap(-1, 1)  # memory that the child shares
    try:
        streams.flush()
        supervisor = os.getpid()
        child = os.fork()
        if child == 0:
            _run_in_child(work, supervisor, heartbeats, has_returned)
        end = _wait(child, watched_signals, kill_at, heartbeats)
        return replace(end, has_returned=has_returned[0] == 1)
    finally:
        if heartbeats:
            heartbeats.close()
        signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)


def _run_in_child(
    work: Callable[[], int], supervisor: int, heartbeats: Heartbeats | None, has_returned: mmap.mmap
) -> NoReturn:
    status = 1
    try:
        exit_with_parent(supervisor)
        if heartbeats:
            heartbeats.start()
        StopSignals.is_supervised = True
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STATES)
        status = work()
    except BaseException:  # noqa: BLE001  (the child must not return to the code that forked it)
        sys.excepthook(*sys.exc_info())
    finally:
        has_returned[0] = 1
        leave(status)


def leave(status: int) -> NoReturn:
    """End this process without finalizing the interpreter, which takes seconds once torch is loaded.

    The calls of private functions are those of `multiprocessing`, which ends its processes in this way.
    """
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        streams.flush()
    finally:
        os._exit(status)


def _wait(
    child: int, watched_signals: set[Signals], kill_at: float | None, heartbeats: Heartbeats | None
) -> ProcessEnd:
    requested_at: float | None = None
    longest_wait = HEARTBEAT_POLL_SECONDS if heartbeats else _LONGEST_WAIT_SECONDS
    while True:
        left = _LONGEST_WAIT_SECONDS if kill_at is None else kill_at - time.monotonic()
        received = wait_for_signal(watched_signals, min(left, longest_wait))
        reaped_child, status = os.waitpid(child, os.WNOHANG)
        if reaped_child:
            return ProcessEnd(status=os.waitstatus_to_exitcode(status))
        late = 0.0 if kill_at is None else time.monotonic() - kill_at
        if late > _LATE_SECONDS or (late > 0 and received == signal.SIGCONT):
            left, kill_at = _AFTER_STOP_SECONDS, time.monotonic() + _AFTER_STOP_SECONDS
        if received in STOP_SIGNALS:
            if requested_at is None:
                requested_at = time.monotonic()
                os.kill(child, received)
            elif time.monotonic() - requested_at > ONE_REQUEST_SECONDS:
                return _kill(child, by_request=Signals(received))
        elif not received and left <= 0:
            return _kill(child, at_limit=True)
        elif heartbeats and heartbeats.are_missing():
            return _kill(child, is_silent=True)


def _kill(child: int, **reason: Any) -> ProcessEnd:
    kill_with_descendants(child)
    _, status = os.waitpid(child, 0)
    return ProcessEnd(status=os.waitstatus_to_exitcode(status), **reason)
