"""Waiting for the response of a process: progress on standard error, and a limit that is an error."""

from __future__ import annotations

import math
import os
import selectors
from typing import IO, Any

from shoestring.base import streams
from shoestring.base.errors import TraceError, UsageError
from shoestring.base.running_time import RunningTime

LIMIT_VARIABLE = "SHOESTRING_TRACE_SECONDS"
"""The environment variable with the limit of one trace."""

LIMIT_SECONDS = 300.0
"""Without the variable. The largest of the built-in recipes takes a tenth of it."""

PROGRESS_SECONDS = 15.0
"""The time between two lines of progress."""

_POLL_SECONDS = 0.5
"""Another thread may close the stream, which wakes nobody who waits for it."""


def limit_seconds() -> float:
    """Return the limit of one trace in seconds. Raises UsageError if the variable is no positive number."""
    text = os.environ.get(LIMIT_VARIABLE)
    if not text:
        return LIMIT_SECONDS
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not seconds > 0:
        raise UsageError(
            f"{LIMIT_VARIABLE}={text}: must be a positive number of seconds", hint=f"{LIMIT_VARIABLE}=600, for example"
        )
    return seconds


def wait(responses: IO[Any], work: str, limit: float = math.inf) -> None:
    """Wait until there is something to read, or the end of the stream. A line every 15 seconds says what is awaited.

    `work` is for example "tracing one update of temporal". Raises TraceError after `limit` seconds.
    """
    with selectors.DefaultSelector() as selector:
        selector.register(responses, selectors.EVENT_READ)
        _wait(selector, responses, work, limit)


def _wait(selector: selectors.BaseSelector, responses: IO[Any], work: str, limit: float) -> None:
    clock, seconds, reported_seconds = RunningTime(), 0.0, 0.0
    limit_text = f" of at most {limit:g} s" if limit < math.inf else ""
    while not selector.select(min(_POLL_SECONDS, PROGRESS_SECONDS, limit - seconds)):
        seconds = clock()
        if responses.closed:
            return
        if seconds >= limit:
            raise TraceError(
                f"{work} has not ended within {limit:g} seconds, the limit of one trace",
                hint="a model that computes one position after another is traced operator by operator: use shorter"
                f" sequences, such as --set seq_len=64, or allow more time with {LIMIT_VARIABLE}={4 * limit:g}",
            )
        if seconds - reported_seconds >= PROGRESS_SECONDS:
            reported_seconds = seconds
            streams.write_messages(f"{work}: {seconds:.0f} s{limit_text}")
