"""All observers of a process, put together."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from typing import Any

import torch

from . import totals
from .events import Events
from .exceptions import Exceptions, watch_notebook
from .files import Files, watch
from .functions import watch as watch_functions
from .native import Native
from .out_of_memory import OutOfMemory
from .phases import ForwardHook, Phases
from .quiet import quiet
from .updates import Updates

_THREADS_SECONDS = 0.05
"""How long threads of PyTorch have to finish before the interpreter ends."""


_MOST_REFUSALS = 5
"""After so many updates too many, the process is ended without its consent."""


def observe(folder: str | None, libraries: str | None, last_update: int | None) -> None:
    """Begin to observe this process, which writes to `folder` and, if there is a last update, ends itself after it."""
    events = Events(folder)
    native = Native(libraries)
    phases = Phases(events, native)
    forward = ForwardHook(phases)
    updates = Updates(events, native, phases, forward)
    files = Files(events)
    exceptions = Exceptions(events)
    memory = OutOfMemory(events, phases, forward, updates)
    first_process = os.getpid()

    def begin() -> None:
        """The process uses a device."""
        if not events.begin():
            return
        phases.tell()
        memory.attach()
        multiprocessing = sys.modules.get("multiprocessing.util")
        if multiprocessing is not None and first_process != os.getpid():  # a forked process ends without `atexit`
            multiprocessing.Finalize(None, end, exitpriority=-100)

    begin_quietly = quiet(begin)

    def end() -> None:
        quiet(files.measure)()
        quiet(files.tell)()
        quiet(events.write)("exit", status=1 if exceptions.ended_by is not None else 0 if stopped else None)
        if torch.cuda.is_initialized():
            # A thread of backward that still waits for the interpreter when that ends would abort the process.
            time.sleep(_THREADS_SECONDS)

    def uncaught(kind: Any, value: Any, trace: Any) -> None:
        if first_process == os.getpid():
            events.begin()
        exceptions.uncaught(kind, value, trace)

    def after_update(update: int) -> None:
        if update <= 2 and not totals_written:
            total = quiet(totals.find)()
            if total is not None:
                totals_written.append(True)
                events.write("total", **total)
        files.now_and_then()
        if last_update is not None and update >= last_update:
            stop(update)

    def stop(update: int) -> None:
        """End the process as `sys.exit` does, so that the script and its launcher clean up."""
        if not stopped:
            stopped.append(True)
            events.write("stopped", update=update)
        refusals.append(True)
        # A script may catch the exception and go on.
        if threading.current_thread() is threading.main_thread() and len(refusals) < _MOST_REFUSALS:
            raise SystemExit(0)
        end()  # in another thread, the exception would end that thread only
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    def before_change() -> None:
        if torch.cuda.is_initialized():  # it was being initialized when the observation began
            begin_quietly()

    def forked() -> None:
        phases.restart()
        updates.restart()
        files.restart()
        totals_written.clear()
        forward.arm()

    totals_written: list[bool] = []
    stopped: list[bool] = []
    refusals: list[bool] = []
    updates.after_update.append(after_update)
    quiet(updates.install)()
    quiet(watch_functions)(phases, files)
    quiet(exceptions.watch_threads)()
    quiet(watch_notebook)(exceptions)
    watch(files, quiet(uncaught))
    atexit.register(end)
    os.register_at_fork(after_in_child=quiet(forked))
    phases.before_change = before_change
    _when_initialized(begin_quietly)


def _when_initialized(function: Any) -> None:
    """Call the function when the script initializes CUDA.

    PyTorch has a list of functions for this. They are added to it directly: `torch.cuda._lazy_call` takes a lock that
    this thread may hold, when CUDA is being initialized just now.
    """
    cuda: Any = torch.cuda
    if cuda.is_initialized():
        function()
    else:
        cuda._queued_calls.append((function, []))
