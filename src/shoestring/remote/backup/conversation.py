"""What the process of a backup and the session say to each other: lines of JSON, and `end SECONDS`."""

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from shoestring.base.errors import CheckpointError, RunError, ShoestringError, UsageError
from shoestring.base.reading import OBJECT, TEXT, find_problems, parse_json

_ERRORS = {kind.__name__: kind for kind in (UsageError, CheckpointError, RunError)}
_MOST_CHARACTERS = 4000


def send(**values: Any) -> None:
    """Write one line of JSON to the standard output."""
    print(json.dumps(values), flush=True)  # noqa: T201 - it is a pipe to the session


def send_error(error: ShoestringError) -> None:
    """Tell the session an error, for the person."""
    problems = [problem[:_MOST_CHARACTERS] for problem in error.problems]
    kind = type(error).__name__
    send(
        error={
            "kind": kind,
            "message": error.message[:_MOST_CHARACTERS],
            "problems": problems,
            "hint": error.hint or "",
        }
    )


def parse_line(line: bytes) -> dict[str, Any]:
    """Return what the process has said. Raises the error that it tells, and ValueError if it says nothing."""
    value = parse_json(line, paths=True)
    if not isinstance(value, dict):
        raise ValueError("it is no JSON object")
    error = value.get("error")
    if error is None:
        return value
    kinds = {"kind": TEXT, "message": TEXT, "hint": TEXT}
    if not OBJECT.matches(error) or kinds.keys() - error.keys() or find_problems(error, kinds):
        raise ValueError("its error cannot be read")
    kind = _ERRORS.get(error["kind"], RunError)
    raise kind(error["message"], problems=[str(text) for text in error.get("problems", [])], hint=error["hint"] or None)


class Life:
    """The session that this process belongs to."""

    def __init__(self) -> None:
        self.end = threading.Event()
        """Set when the session has ended."""
        self.end_at = float("inf")
        """When this process has to end, by `time.monotonic()`."""
        self.on_limit: Callable[[], None] = lambda: None
        """Called before this process ends at that time with its work undone."""
        threading.Thread(target=self._listen, name="session", daemon=True).start()

    def _listen(self) -> None:
        text = b""
        while not text.endswith(b"\n"):
            block = os.read(0, 100)
            if not block:
                os._exit(1)  # the session was killed: another one may continue the run now
            text += block
        self.end_at = time.monotonic() + float(text.split()[1])
        self.end.set()
        threading.Event().wait(max(0.0, self.end_at - time.monotonic()))
        try:
            self.on_limit()
            sys.stdout.flush()
        finally:
            os._exit(1)
