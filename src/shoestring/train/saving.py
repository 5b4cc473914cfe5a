"""How a state is saved: training stands still while it is copied, a thread does the rest."""

import math
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import torch

from shoestring.checkpoint.snapshot import HostCopy, Snapshot, snapshot
from shoestring.checkpoint.store import Restored, Saved, Store
from shoestring.engine.environment import require_same
from shoestring.engine.memory import Failure, catch_out_of_memory, free
from shoestring.engine.state import State
from shoestring.errors import CheckpointError, RunError
from shoestring.session.deadline import Deadline
from shoestring.settings import Settings
from shoestring.train.failure import finite, trained_names, weights_finite
from shoestring.train.interval import SavePolicy
from shoestring.train.record import Record

NotFinite = Callable[[int, str, float], RunError]
"""(number of the update from 1, what of it, its value) -> the error."""


@dataclass(frozen=True, kw_only=True)
class _Writing:
    """A save under way."""

    update: int
    written: "Future[Saved | Failure | None]"
    stall_seconds: float


class Saver:
    """A run's full checkpoints.

    What became of a save is learnt at the next `due`; leaving the saver, as a context, waits for the one under way.
    Weights that are not finite are never saved: whichever call learns of them raises the error that `not_finite` makes.
    """

    def __init__(
        self,
        store: Store,
        settings: Settings,
        record: Record,
        deadline: Deadline,
        environment: dict[str, Any],
        *,
        not_finite: NotFinite,
    ) -> None:
        """`environment` is what decides the bits here; it is saved with the state and held against it on restoring."""
        self._store, self._record, self._deadline, self._environment = store, record, deadline, environment
        self.not_finite = not_finite
        self._policy = SavePolicy(settings)
        self._copy = HostCopy()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="saving", initializer=_on_one_core)
        self._state: State | None = None
        self._prepared: Future[None] | None = None
        self._under_way: _Writing | None = None
        self._stamp: tuple[int, int] | None = None
        self._slowest = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self._settle()
        finally:
            self._thread.shutdown()
            self._copy.close()

    def due(self, update: int) -> bool:
        """Whether to begin a save now; what became of the last one is learnt first.

        Waits for the one under way where a kill would cost more than an interval if the next update began before.
        """
        self._prepare()
        if self._under_way and (self._under_way.written.done() or self._policy.must_wait(update)):
            self._settle()
        return self._policy.due(update)

    def begin(self, state: State) -> None:
        """Save the state as it is now, unless it was saved or read last; only copying it is waited for.

        A save that cannot be written is told of, and tried again later: the checkpoints before it are still there.

        Raises CheckpointError for a value that cannot be saved.
        """
        if self._is_saved(state):
            return
        self._settle()
        began = time.monotonic()
        if self._prepared:
            self._prepared.exception()  # where memory was not enough for it, the copy says so
        self._policy.began(state.update)
        copy = self._copy.take(self._pack(state), self._thread)
        self._stamp = _stamp(state)
        written = self._thread.submit(self._write, state.update, copy, trained_names(state.model))
        stall_seconds = time.monotonic() - began
        self._policy.stood(stall_seconds)
        self._under_way = _Writing(update=state.update, written=written, stall_seconds=stall_seconds)
        # One that stopping would have to wait for had better be there before: stopping has nothing to save then.
        if self._stopping_is_near() or self._policy.must_wait(state.update):
            self._settle()

    def newest(self) -> str:
        """The name of the newest checkpoint, when the one under way is written."""
        self._settle()
        return self._store.path(self._store.updates()[-1]).name

    def put_off(self) -> None:
        """The save that began last could not be made: the next one is due later, twice as late each time."""
        self._policy.failed()

    def save(self, state: State) -> None:
        """As `begin`, and wait until it is there.

        Raises CheckpointError, naming the last good checkpoint, when it cannot be written.
        """
        self._settle()
        if self._is_saved(state):
            return
        if state.update and not weights_finite(state.model):
            raise self._weights_not_finite(state.update)
        began = time.monotonic()
        self._policy.began(state.update)
        saved = self._store.save(state.update, self._pack(state))
        self._stamp = _stamp(state)
        stall_seconds = time.monotonic() - began
        self._policy.stood(stall_seconds)
        self._told(saved, stall_seconds=stall_seconds, cost=stall_seconds)

    def restore(self, state: State, *, allow_inexact: bool, restored: Restored | None = None) -> bool:
        """Bring `state` to the newest checkpoint that verifies, or to the one that was `restored` from the store just
        now; False if there is none yet.

        Raises UsageError when it was saved under something else that decides the bits, unless that is allowed.
        """
        self._settle()
        self._state = state
        restored = restored or self._store.load()
        if restored is None:
            return False
        changed = require_same(restored.state["environment"], self._environment, allow_inexact=allow_inexact)
        state.restore(restored.state)
        self._policy.restored(state.update)
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

    def _is_saved(self, state: State) -> bool:
        return self._stamp == _stamp(state)

    def _pack(self, state: State) -> dict[str, Any]:
        return {**state.pack(), "environment": self._environment}

    def _write(self, update: int, copy: Snapshot, trained: frozenset[str]) -> Saved | Failure | None:
        """In the thread: a checkpoint of a copy; None where its weights are not finite."""

        def write() -> Saved | None:
            copy.wait()
            weights = copy.sections["model"].tensors
            if not finite(weights[name] for name in trained & weights.keys()):
                return None
            return self._store.write(update, copy)

        return catch_out_of_memory(write)

    def _settle(self) -> None:
        """Wait for the save under way, if there is one, and tell what became of it."""
        if not self._under_way:
            return
        under_way, self._under_way = self._under_way, None
        began = time.monotonic()
        saved, why = _result(under_way.written)
        waited = time.monotonic() - began
        self._policy.stood(waited)
        if saved is None:
            self._stamp = None
            self._policy.failed()
            if not why:
                raise self._weights_not_finite(under_way.update)
            self._record.unsaved(under_way.update, "checkpoint", why)
            return
        stall_seconds = under_way.stall_seconds + waited
        cost = stall_seconds + saved.cpu_seconds
        self._told(saved, stall_seconds=stall_seconds, cost=cost, writing=saved.seconds)

    def _weights_not_finite(self, update: int) -> RunError:
        return self.not_finite(update, "largest weight", math.nan)

    def _stopping_is_near(self) -> bool:
        """Whether it may be time to stop before a save that begins now has ended."""
        remaining = self._deadline.remaining()
        return remaining is not None and remaining - self._deadline.stopping_seconds() <= self._slowest

    def _told(self, saved: Saved, *, stall_seconds: float, cost: float, writing: float | None = None) -> None:
        seconds = max(saved.seconds, stall_seconds)
        self._slowest = max(self._slowest, seconds)
        self._deadline.observe("save", seconds)
        self._policy.saved(cost=cost, writing=writing)
        self._record.saved(saved, stall_seconds=stall_seconds)


def _on_one_core() -> None:
    """Keep the thread that calls this from having OpenMP threads of its own.

    With more of them in a process than there are cores, GNU's OpenMP lets those that wait for the next kernel sleep
    (`gomp_throttled_spin_count_var`), training's own among them: updates of a small model took 2.6 times as long.
    """
    torch.set_num_threads(1)
    torch.get_num_threads()  # makes it so here and now; the thread's first kernel would ask for a number anew


def _stamp(state: State) -> tuple[int, int]:
    return state.update, len(state.history)


def _result(written: "Future[Saved | Failure | None]") -> tuple[Saved | None, str]:
    """What was saved, or why nothing was; no reason where the weights are not finite."""
    try:
        saved = written.result()
    except CheckpointError as error:
        return None, str(error)
    if isinstance(saved, Failure):
        free()
        return None, f"no memory to write a checkpoint: {saved.message}"
    return saved, ""
