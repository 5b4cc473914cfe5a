"""Where the time of an update of several ranks goes: the exchange itself, and waiting for the slowest rank."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch

from shoestring.training.monitor.sampling import sample

_MEMORY_SECONDS = 1.0
"""Between two measurements of the memory."""


class ExchangeClock:
    """Measures the seconds from the end of this rank's work to the end of the exchange, on its device."""

    def __init__(self, device: torch.device) -> None:
        self._is_gpu = device.type == "cuda"
        self._pending: deque[tuple[Any, Any]] = deque()
        self._start: Any = None
        self._seconds = 0.0

    def start(self) -> None:
        """This rank has done its work."""
        self._start = self._mark()

    def stop(self) -> None:
        """The exchange is complete."""
        self._pending.append((self._start, self._mark()))

    def take(self) -> float:
        """Return the seconds of the exchanges that have been completed since the last call."""
        while self._pending and (not self._is_gpu or self._pending[0][1].query()):
            start, end = self._pending.popleft()
            self._seconds += start.elapsed_time(end) / 1e3 if self._is_gpu else end - start
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def _mark(self) -> Any:
        if not self._is_gpu:
            return time.monotonic()
        event: Any = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


class RankTimes:
    """What each rank reports with every update, collected for the record."""

    count = 3
    """The number of facts of a rank."""

    def __init__(self, device: torch.device) -> None:
        self.clock = ExchangeClock(device)
        self.input_seconds: Callable[[], float] = lambda: 0.0
        """Returns for how long this rank has waited for data so far."""
        self._reported_input = 0.0
        self._memory_bytes, self._measured_at = 0.0, -_MEMORY_SECONDS
        self._rows: list[Sequence[float]] = []

    def own(self) -> list[float]:
        """Return the facts of this rank: its memory in bytes, and since the last call the seconds of its exchanges and
        of waiting for data.
        """
        if time.monotonic() - self._measured_at >= _MEMORY_SECONDS:
            memory = sample()
            self._memory_bytes = float(memory.gpu_peak_reserved_bytes or memory.rss_bytes or 0)
            self._measured_at = time.monotonic()
        before, self._reported_input = self._reported_input, self.input_seconds()
        return [self._memory_bytes, self.clock.take(), self._reported_input - before]

    def add(self, facts: Sequence[Sequence[float]]) -> None:
        """Add the facts of all ranks of one update."""
        self._rows.append([value for row in facts for value in row])

    def take(self) -> list[dict[str, float]]:
        """Return the memory of each rank, and its seconds of exchanging and of waiting for others, and for data.

        The last rank to finish its work waits for nobody: what all of them need is the exchange, and the rest of each
        is waiting.
        """
        rows, self._rows = self._rows, []
        if not rows:
            return []
        ranks = len(rows[0]) // self.count
        exchange = sum(min(row[1 :: self.count]) for row in rows)
        return [
            {
                "memory_bytes": int(rows[-1][self.count * rank]),
                "exchange_seconds": exchange,
                "waiting_seconds": sum(row[self.count * rank + 1] for row in rows) - exchange,
                "input_seconds": sum(row[self.count * rank + 2] for row in rows),
            }
            for rank in range(ranks)
        ]
