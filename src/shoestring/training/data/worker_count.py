"""The number of worker processes: none until waiting for data costs something, then the number that measures best."""

import math
import os
from dataclasses import dataclass

TOLERATED = 0.05
"""Share of the time that may be spent waiting for data before workers are started."""
_MAX_WORKERS = 8  # each of them needs host memory for prefetched batches
_MIN_WAITING_SECONDS = 2e-3  # for a microbatch; receiving one from another process took 0.8 ms
_WINDOW_SECONDS, _WINDOW_MICROBATCHES = 2.0, 8  # of a measurement
_MAX_WINDOW_SECONDS = 30.0  # that end a measurement, however few its microbatches
_REMEASURE_FACTOR = 1.5  # times the waiting share of the settled number, above which it is measured again


def max_workers_in_shared_memory(batch_bytes: int, *, prefetch: int, shared: str = "/dev/shm") -> int:
    """Return for how many processes, with `prefetch` batches each, half of the shared memory is sufficient.

    Batches are passed through it. In a container it may have no more than 64 MB, and a process that exceeds it is
    killed.
    """
    try:
        disk = os.statvfs(shared)
    except OSError:
        return _MAX_WORKERS
    return disk.f_bavail * disk.f_frsize // 2 // max(1, prefetch * batch_bytes)


def workers_for(loading_seconds: float, computing_seconds: float, cores: int) -> int:
    """Return the number of workers for updates whose data one process loads in `loading_seconds`: the fewest that
    keep up, as far as training starts that many. 0 if training can load by itself.
    """
    if loading_seconds <= TOLERATED * (loading_seconds + computing_seconds):
        return 0
    count = 1.25 * loading_seconds / max(computing_seconds, 1e-9)
    return min(_most_workers(cores), math.ceil(min(count, _MAX_WORKERS)))


def _most_workers(cores: int) -> int:
    return min(_MAX_WORKERS, max(2, cores))


@dataclass
class _Window:
    """The measurement of one number of workers."""

    waiting_seconds: float = 0.0
    seconds: float = 0.0
    updates: int = 0
    microbatches: int = 0

    @property
    def waiting_share(self) -> float:
        return self.waiting_seconds / self.seconds

    @property
    def update_seconds(self) -> float:
        return self.seconds / self.updates


class WorkerCount:
    """Determines the number of worker processes, `count`, from the timing of each update.

    It is a pure function of the observed timings. Each number is tried once, and the one with the fastest updates is
    used, until updates wait for data for a clearly larger share of the time than they did then.
    """

    def __init__(self, cores: int) -> None:
        """`cores` is the number of hardware threads; two processes are tried anyway, for data with high latency."""
        self.count = 0
        self._max_count = _most_workers(cores)
        self._measured: dict[int, _Window] = {}
        self._is_settled = False
        self._window = _Window()
        self._is_warm = False

    def limit(self, max_count: int) -> None:
        """Limit the number of processes to `max_count`."""
        self._max_count = min(self._max_count, max_count)

    def observe(self, *, waiting_seconds: float, seconds: float, microbatches: int) -> None:
        """Record that the last update took `seconds`, including `waiting_seconds` for its `microbatches`."""
        if not self._is_warm:
            # The first update includes one-time work: selecting kernels, starting processes.
            self._is_warm = True
            return
        window = self._window
        window.waiting_seconds += waiting_seconds
        window.seconds += seconds
        window.updates += 1
        window.microbatches += microbatches
        is_short = window.seconds < _WINDOW_SECONDS or window.microbatches < _WINDOW_MICROBATCHES
        if is_short and window.seconds < _MAX_WINDOW_SECONDS:
            return
        self._window = _Window()
        count = self._choose(window)
        if count != self.count:
            self.count, self._is_warm = count, False

    def _choose(self, window: _Window) -> int:
        if self._is_settled:
            settled_share = self._measured[self.count].waiting_share
            if window.waiting_share <= max(TOLERATED, _REMEASURE_FACTOR * settled_share):
                return self.count
            self._measured, self._is_settled = {}, False
        self._measured[self.count] = window
        if window.waiting_share <= TOLERATED:
            return self._settle(self.count)
        if self.count == 0 and window.waiting_seconds < _MIN_WAITING_SECONDS * window.microbatches:
            return 0
        candidate = self._next_candidate(window)
        is_slower = window.update_seconds > min(measured.update_seconds for measured in self._measured.values())
        if candidate in self._measured or is_slower:
            return self._settle(min(self._measured, key=lambda count: self._measured[count].update_seconds))
        return candidate

    def _next_candidate(self, window: _Window) -> int:
        if self.count:
            return min(self._max_count, 2 * self.count)
        # The data that one process fetches in the waiting time has to be ready within the remaining time, or a little
        # earlier.
        remaining_seconds = max(window.seconds - window.waiting_seconds, 1e-9)
        return min(self._max_count, math.ceil(min(1.25 * window.waiting_seconds / remaining_seconds, _MAX_WORKERS)))

    def _settle(self, count: int) -> int:
        self._is_settled = True
        return count
