"""How many processes should fetch data: none until waiting is seen to cost something, then what measures best."""

import math
import os
from dataclasses import dataclass

TOLERATED = 0.05
"""Share of the time that may go into waiting for data before something is done about it."""
_MOST = 8  # each takes host memory for what it reads ahead
_WORTH = 2e-3  # seconds to fetch a microbatch; handing one over from another process took 0.8 ms
_WINDOW_SECONDS, _WINDOW_MICROBATCHES = 2.0, 8  # of a measurement
_LONG_SECONDS = 30.0  # are enough of one, however few they were
_WORSE = 1.5  # times the waiting that was settled for, and it is measured again


def room(batch_bytes: int, *, ahead: int, shared: str = "/dev/shm") -> int:
    """For how many processes that read `ahead` batches each there is room in half of the memory that they hand them
    over in: in a container it may be no more than 64 MB, and who exceeds it is killed.
    """
    try:
        disk = os.statvfs(shared)
    except OSError:
        return _MOST
    return disk.f_bavail * disk.f_frsize // 2 // max(1, ahead * batch_bytes)


@dataclass
class _Window:
    waited: float = 0.0
    seconds: float = 0.0
    updates: int = 0
    microbatches: int = 0

    @property
    def share(self) -> float:
        return self.waited / self.seconds

    @property
    def update_seconds(self) -> float:
        return self.seconds / self.updates


class WorkerCount:
    """Tell it what each update took; `count` is how many processes to use from now on.

    A pure function of what it is told. Each count is tried once and the one with the fastest updates is kept, until the
    data waits for clearly more of the time than it did then.
    """

    def __init__(self, cores: int) -> None:
        """`cores` are hardware threads; two processes are tried on any, because some data is only slow to arrive."""
        self.count = 0
        self._most = min(_MOST, max(2, cores))
        self._tried: dict[int, _Window] = {}
        self._settled = False
        self._window = _Window()
        self._warm = False

    def limit(self, most: int) -> None:
        """There is room for at most so many."""
        self._most = min(self._most, most)

    def observe(self, *, waited: float, seconds: float, microbatches: int) -> None:
        """The last update took `seconds`, `waited` of them for its `microbatches`."""
        if not self._warm:
            # The first has what happens once: kernels chosen, processes started.
            self._warm = True
            return
        window = self._window
        window.waited += waited
        window.seconds += seconds
        window.updates += 1
        window.microbatches += microbatches
        few = window.seconds < _WINDOW_SECONDS or window.microbatches < _WINDOW_MICROBATCHES
        if few and window.seconds < _LONG_SECONDS:
            return
        self._window = _Window()
        chosen = self._choose(window)
        if chosen != self.count:
            self.count, self._warm = chosen, False

    def _choose(self, now: _Window) -> int:
        if self._settled:
            if now.share <= max(TOLERATED, _WORSE * self._tried[self.count].share):
                return self.count
            self._tried, self._settled = {}, False
        self._tried[self.count] = now
        if now.share <= TOLERATED:
            return self._settle(self.count)
        if self.count == 0 and now.waited < _WORTH * now.microbatches:
            return 0
        wanted = self._wanted(now)
        slower = now.update_seconds > min(window.update_seconds for window in self._tried.values())
        if wanted in self._tried or slower:
            return self._settle(min(self._tried, key=lambda count: self._tried[count].update_seconds))
        return wanted

    def _wanted(self, now: _Window) -> int:
        if self.count:
            return min(self._most, 2 * self.count)
        # What one process fetches in `waited` has to be there within the rest of the time, and a little earlier.
        rest = max(now.seconds - now.waited, 1e-9)
        return min(self._most, math.ceil(min(1.25 * now.waited / rest, _MOST)))

    def _settle(self, count: int) -> int:
        self._settled = True
        return count
