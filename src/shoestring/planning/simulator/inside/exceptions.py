"""Exceptions that nobody caught."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import torch

from . import frames
from .events import Events
from .quiet import quiet

_SIGNS = ("CUDA out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "torch.OutOfMemoryError", "torch.cuda.OutOfMemoryError")


class Exceptions:
    """Writes an event for an exception that ends the script or one of its threads.

    For those that end the script, Python raises an audit event before it calls `sys.excepthook`, which reaches us
    also where the script or a library puts a function of its own there.
    """

    def __init__(self, events: Events) -> None:
        self.ended_by: BaseException | None = None
        self._events = events

    def watch_threads(self) -> None:
        """Write an event for exceptions of threads as well; the hook that is there still runs."""
        previous = threading.excepthook
        write = quiet(self.write)

        def hook(args: Any, /) -> Any:
            if args.exc_type is not SystemExit:
                write(args.exc_value, args.exc_traceback)
            return previous(args)

        threading.excepthook = hook

    def uncaught(self, _type: Any, value: BaseException | None, trace: TracebackType | None) -> None:
        """The script ends with the exception."""
        self.ended_by = value
        self.write(value, trace)

    def write(self, value: BaseException | None, trace: TracebackType | None) -> None:
        """Write the event."""
        if value is None:
            return
        stack = [
            {"file": frame.f_code.co_filename, "line": line, "function": frame.f_code.co_name}
            for frame, line in traceback.walk_tb(trace)
            if not frames.is_observer(frame.f_code.co_filename)
        ]
        self._events.write(
            "exception",
            type=_name(type(value)),
            message=str(value)[:2000],
            stack=stack[::-1][:100],
            out_of_memory=any(is_out_of_memory(exception) for exception in chain(value)),
        )


def chain(exception: BaseException | None) -> Iterator[BaseException]:
    """The exception and those that it was raised from, or while they were handled."""
    visited: set[int] = set()
    waiting = [exception]
    while waiting:
        exception = waiting.pop()
        if exception is None or id(exception) in visited:
            continue
        visited.add(id(exception))
        yield exception
        waiting.append(exception.__cause__)
        if not exception.__suppress_context__:
            waiting.append(exception.__context__)
        waiting.extend(getattr(exception, "exceptions", ()) if hasattr(exception, "derive") else ())


def is_out_of_memory(exception: BaseException) -> bool:
    """Whether it says that a GPU has no memory, whatever its type: processes pass on text only."""
    if isinstance(exception, torch.cuda.OutOfMemoryError):
        return True
    text = str(exception)
    return any(sign in text for sign in _SIGNS)


def _name(kind: type) -> str:
    name = kind.__qualname__
    return name if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{name}"


def watch_notebook(exceptions: Exceptions) -> None:
    """In a notebook, IPython catches the exceptions of cells."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None:
        return

    def after_cell(result: Any) -> None:
        error = getattr(result, "error_in_exec", None)
        if error is not None:
            exceptions.write(error, error.__traceback__)

    shell.events.register("post_run_cell", after_cell)
