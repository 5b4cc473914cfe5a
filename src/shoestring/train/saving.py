"""When to save, seldom enough to cost little and often enough to lose little; and how: while training goes on."""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from shoestring.checkpoint.snapshot import HostCopy, snapshot
from shoestring.checkpoint.store import Saved, Store
from shoestring.errors import CheckpointError
from shoestring.session.deadline import Deadline
from shoestring.settings import Settings
from shoestring.train.environment import require_same
from shoestring.train.record import Record
from shoestring.train.state import TrainingState

_COST = 0.02  # of the time may go into saving
_LONGEST = 600.0  # seconds of work that a kill may cost
_AGAIN = 10.0  # seconds after which a save that failed is tried again, twice as many after each further one


class SavePolicy:
    """After each update: is a full checkpoint due?

    By default saves begin as far apart as keeps what one costs at 2% of the time, but no farther than that a kill just
    before the end of the next one takes ten minutes of work. One never begins before the last has ended.
    """

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self._updates = settings.save_every_updates
        self._seconds = settings.save_every_seconds
        self._clock = clock
        self._began_at = clock()
        self._interval = self._seconds if self._seconds is not None else _LONGEST
        self._not_before = 0.0
        self._failures = 0

    def began(self) -> None:
        """A save begins."""
        self._began_at = self._clock()

    def saved(self, *, cost: float, seconds: float) -> None:
        """The save that began last has ended: it took `seconds`, and `cost` seconds of training."""
        self._failures = 0
        if self._seconds is None:
            self._interval = max(seconds, min(_LONGEST - seconds, cost / _COST))

    def failed(self) -> None:
        """The save that began last could not be written."""
        self._not_before = self._clock() + min(_LONGEST, _AGAIN * 2**self._failures)
        self._failures += 1

    def due(self, update: int) -> bool:
        """Whether to save now that `update` updates are done."""
        now = self._clock()
        if now < self._not_before:
            return False
        return (self._updates is not None and update % self._updates == 0) or now - self._began_at >= self._interval


@dataclass(frozen=True, kw_only=True)
class _Writing:
    """A save under way."""

    update: int
    written: "Future[Saved]"
    stall_seconds: float


class Saver:
    """A run's full checkpoints: training stands still while its state is copied, a thread does the rest.

    What became of a save is learnt at the next `due`; leaving the saver, as a context, waits for the one under way.
    """

    def __init__(
        self, store: Store, settings: Settings, record: Record, deadline: Deadline, environment: dict[str, Any]
    ) -> None:
        """`environment` is what decides the bits here; it is saved with the state and held against it on restoring."""
        self._store, self._record, self._deadline, self._environment = store, record, deadline, environment
        self._policy = SavePolicy(settings)
        self._copy = HostCopy()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="saving")
        self._state: TrainingState | None = None
        self._prepared: Future[None] | None = None
        self._under_way: _Writing | None = None
        self._stamp: tuple[int, int] | None = None
        self._slowest = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._settle()
        self._thread.shutdown()
        self._copy.close()

    def due(self, update: int) -> bool:
        """Whether to begin a save now; what became of the last one is learnt first."""
        self._prepare()
        if self._under_way and self._under_way.written.done():
            self._settle()
        if not self._policy.due(update):
            return False
        # One that stopping would have to wait for is not worth beginning: stopping saves.
        remaining = self._deadline.remaining()
        return remaining is None or remaining - self._deadline.stopping_seconds() > self._slowest

    def begin(self, state: TrainingState) -> None:
        """Save the state as it is now, unless it was saved or read last; only copying it is waited for.

        A save that cannot be written is told of, and tried again later: the checkpoints before it are still there.

        Raises CheckpointError for a value that cannot be saved.
        """
        if self._is_saved(state):
            return
        began = time.monotonic()
        self._settle()
        if self._prepared:
            self._prepared.exception()  # where memory was not enough for it, the copy says so
        self._policy.began()
        copy = self._copy.take(self._pack(state))
        self._stamp = _stamp(state)
        self._under_way = _Writing(
            update=state.update,
            written=self._thread.submit(self._store.write, state.update, copy),
            stall_seconds=time.monotonic() - began,
        )

    def newest(self) -> str:
        """The name of the newest checkpoint, when the one under way is written."""
        self._settle()
        return self._store.path(self._store.updates()[-1]).name

    def put_off(self) -> None:
        """The save that began last could not be made: the next one is due later, twice as late each time."""
        self._policy.failed()

    def save(self, state: TrainingState) -> None:
        """As `begin`, and wait until it is there.

        Raises CheckpointError, naming the last good checkpoint, when it cannot be written.
        """
        self._settle()
        if self._is_saved(state):
            return
        began = time.monotonic()
        self._policy.began()
        saved = self._store.save(state.update, self._pack(state))
        self._stamp = _stamp(state)
        stall_seconds = time.monotonic() - began
        self._told(saved, stall_seconds=stall_seconds, cost=stall_seconds)

    def restore(self, state: TrainingState, *, allow_inexact: bool) -> bool:
        """Bring `state` to the newest checkpoint that verifies; False where there is none yet.

        Raises QuestionError when it was saved under something else that decides the bits, unless that is allowed.
        """
        self._settle()
        self._state = state
        restored = self._store.load()
        if restored is None:
            return False
        changed = require_same(restored.state["environment"], self._environment, allow_inexact=allow_inexact)
        state.restore(restored.state)
        if changed:
            self._record.note("from here on not bit for bit the run that began: " + "; ".join(changed))
        else:
            self._stamp = _stamp(state)
        return True

    def _prepare(self) -> None:
        """Have the memory for copies ready, once: the first update has made all there is to save."""
        state, self._state = self._state, None
        if state:
            self._prepared = self._thread.submit(self._copy.prepare, snapshot(self._pack(state)))

    def _is_saved(self, state: TrainingState) -> bool:
        return self._stamp == _stamp(state)

    def _pack(self, state: TrainingState) -> dict[str, Any]:
        return {**state.pack(), "environment": self._environment}

    def _settle(self) -> None:
        """Wait for the save under way, if there is one, and tell what became of it."""
        if not self._under_way:
            return
        under_way, self._under_way = self._under_way, None
        waited = time.monotonic()
        try:
            saved = under_way.written.result()
        except CheckpointError as error:
            self._stamp = None
            self._policy.failed()
            self._record.unsaved(under_way.update, "checkpoint", str(error))
            return
        stall_seconds = under_way.stall_seconds + time.monotonic() - waited
        self._told(saved, stall_seconds=stall_seconds, cost=stall_seconds + saved.cpu_seconds)

    def _told(self, saved: Saved, *, stall_seconds: float, cost: float) -> None:
        seconds = max(saved.seconds, stall_seconds)
        self._slowest = max(self._slowest, seconds)
        self._deadline.observe("save", seconds)
        self._policy.saved(cost=cost, seconds=seconds)
        self._record.saved(saved, stall_seconds=stall_seconds)


def _stamp(state: TrainingState) -> tuple[int, int]:
    return state.update, len(state.history)
