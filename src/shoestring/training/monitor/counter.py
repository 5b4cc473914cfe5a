"""Progress of work on a stream of items, such as predictions: a live line on a terminal, periodic lines elsewhere."""

import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

from shoestring.base.streams import ReportStream, message_text
from shoestring.base.units import count_text, seconds_text


class Counter:
    """Displays on stderr how many of `total` items are completed; `total` may be unknown."""

    def __init__(
        self,
        item: str,
        *,
        total: int | None,
        completed: int = 0,
        plain_seconds: float = 10.0,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`item` is the plural of what is counted. `completed` items were completed earlier."""
        self._item, self._total, self._first, self._completed = item, total, completed, completed
        self._plain_seconds, self._clock = plain_seconds, clock
        self._stream: Any = ReportStream(stream or sys.stderr)
        self._is_live = bool(self._stream.isatty())
        self._start_time = self._printed_at = clock()
        self._is_line_open = False

    def add(self, count: int) -> None:
        """Record that `count` more items are completed."""
        self._completed += count
        time_now = self._clock()
        if time_now - self._printed_at >= (0.2 if self._is_live else self._plain_seconds):
            self._printed_at = time_now
            self._print(self._text(time_now))

    def message(self, text: str) -> None:
        """Print a permanent line."""
        self.close()
        self._stream.write(f"{message_text(text)}\n")
        self._stream.flush()

    def close(self) -> None:
        """Remove the live line."""
        if self._is_line_open:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._is_line_open = False

    def _print(self, text: str) -> None:
        self._stream.write(f"\r{text}\x1b[K" if self._is_live else f"{text}\n")
        self._stream.flush()
        self._is_line_open = self._is_live

    def _text(self, time_now: float) -> str:
        rate = (self._completed - self._first) / max(1e-9, time_now - self._start_time)
        of_total = "" if self._total is None else f" of {count_text(self._total)}"
        facts = [f"{count_text(self._completed)}{of_total} {self._item}", f"{rate:.3g}/s"]
        if self._total is not None and rate:
            facts.append(f"{seconds_text(max(0, self._total - self._completed) / rate)} left")
        return " · ".join(facts)
