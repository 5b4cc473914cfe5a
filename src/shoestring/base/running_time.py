"""A clock that stands still while this process is stopped."""

import time

LONGEST_SECONDS = 1.0
"""What counts at most between two readings."""


class RunningTime:
    """The seconds in which this process has run, for one that waits for others and reads it at least once a second.

    If more time than a second has passed, this process was stopped (Ctrl-Z, `docker pause`), and probably those for
    which it waits too: they are not late by that.
    """

    def __init__(self) -> None:
        self._seconds, self._read_at = 0.0, time.monotonic()

    def __call__(self) -> float:
        before, self._read_at = self._read_at, time.monotonic()
        self._seconds += min(self._read_at - before, LONGEST_SECONDS)
        return self._seconds
