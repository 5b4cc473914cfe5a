"""Saving checkpoints: training is stalled while its state is copied, and a background thread writes the copy."""

import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import torch

from shoestring.base.errors import CheckpointError, RunError, ShoestringError
from shoestring.base.settings import Settings
from shoestring.training.checkpoint.files import directory_bytes
from shoestring.training.checkpoint.presence import GoneError
from shoestring.training.checkpoint.snapshot import HostCopy, Snapshot, snapshot
from shoestring.training.checkpoint.store import Restored, Saved, Store
from shoestring.training.engine.environment import notes_on_machine, require_same
from shoestring.training.engine.memory import (
    Failure,
    catch_out_of_memory,
    free_unused_memory,
    retry_with_freed_memory,
)
from shoestring.training.engine.state import State
from shoestring.training.non_finite import all_finite, trained_parameter_names, weights_are_finite
from shoestring.training.processes.one_process import ONE_PROCESS, Processes
from shoestring.training.record import Record
from shoestring.training.save_policy import SavePolicy
from shoestring.training.session.deadline import Deadline
from shoestring.training.session.stop import SessionOver

NonFiniteError = Callable[[int, str, float], RunError]
"""(number of the update from 1, name of the quantity, its value) -> the error."""


@dataclass(frozen=True, kw_only=True)
class _PendingSave:
    """A save that the background thread is writing."""

    update: int
    written: "Future[Saved | Failure | None]"
    stall_seconds: float


class Saver:
    """Saves and restores a run's full checkpoints. All processes of a session call `due`, `begin` and `save` together.

    The result of a save is processed at the next call of `due`; leaving the saver as a context manager waits for the
    pending save. Weights that are not finite are never saved: the call that processes such a save raises the error that
    `non_finite_error` makes.
    """

    def __init__(
        self,
        store: Store,
        settings: Settings,
        record: Record,
        deadline: Deadline,
        environment: dict[str, Any],
        *,
        non_finite_error: NonFiniteError,
        processes: Processes = ONE_PROCESS,
    ) -> None:
        """`environment` is everything that determines the run's bits; it is saved with the state and compared on
        restoring.
        """
        self._processes = processes
        self._store, self._record, self._deadline, self._environment = store, record, deadline, environment
        self.non_finite_error = non_finite_error
        self._policy, self._save_epochs = SavePolicy(settings), settings.save_epochs
        self._copy = HostCopy()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="saving", initializer=_use_one_thread)
        self._unprepared_state: State | None = None
        self._preparation: Future[None] | None = None
        self._pending: _PendingSave | None = None
        self._saved_position: tuple[int, int] | None = None
        self._has_noted_machine = False
        self._slowest_seconds = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self._finish_pending()
        except ShoestringError:
            # An earlier error is the one to report. A session that only has to stop has no error yet.
            if error is None or isinstance(error, SessionOver):
                raise
        finally:
            self._thread.shutdown()
            self._copy.close()

    def due(self, update: int) -> bool:
        """Return whether to begin a save now, after processing the result of the previous one.

        Waits for the pending save if a kill during the next update would otherwise cost more than one interval.
        """
        return self._processes.is_any(lambda: self._processes.is_writer and self._is_due(update))

    def _is_due(self, update: int) -> bool:
        self._prepare()
        if self._pending and (self._pending.written.done() or self._policy.must_wait(update)):
            self._finish_pending()
        return self._policy.is_due(update)

    def retains(self, state: State) -> bool:
        """Return whether the setting `save_epochs` keeps the checkpoint of this state, in which an epoch has ended."""
        return bool(
            self._save_epochs and state.update and state.at_epoch_end and state.epochs_done % self._save_epochs == 0
        )

    def begin(self, state: State) -> Failure | None:
        """Save the current state in the background, unless it was just saved or restored; only the copy is waited for.

        A save that cannot be written is recorded and retried later: earlier checkpoints remain. Returns a Failure if a
        process has no memory for its copy.

        Raises CheckpointError for a value that cannot be saved.
        """
        with self._whole(state):
            return self._processes.call(lambda: catch_out_of_memory(lambda: self._begin(state)))

    @contextmanager
    def _whole(self, state: State) -> Iterator[None]:
        """Compare the weights of all processes, then return a context in which those that save have what they save.

        Raises RunError in all processes if their weights differ.
        """
        self._processes.require_equal_weights(state.model, state.update)
        self._processes.settle(self._finish_pending)
        with state.collected() if self._processes.is_any(lambda: self._needs_save(state)) else nullcontext():
            yield

    def _begin(self, state: State) -> Failure | None:
        if not self._needs_save(state):
            return None
        self._finish_pending()
        started_at = time.monotonic()
        if self._preparation:
            self._preparation.exception()  # without memory for it, the copy fails as well and is reported
        self._policy.save_started(state.update)
        copy = self._processes.copy(lambda: self._copy.take(self._pack(state), self._thread))
        if isinstance(copy, Failure):
            return copy
        self._saved_position = _position(state)
        written = self._thread.submit(
            self._write, state.update, copy, trained_parameter_names(state.model), self.retains(state)
        )
        stall_seconds = time.monotonic() - started_at
        self._policy.add_stall(stall_seconds)
        self._pending = _PendingSave(update=state.update, written=written, stall_seconds=stall_seconds)
        # If the session may have to stop before the save ends, wait for it now: stopping then has nothing to save.
        if self._may_stop_during_save() or self._policy.must_wait(state.update):
            self._finish_pending()
        return None

    def _needs_save(self, state: State) -> bool:
        """Return whether this process saves the current state, which was neither saved nor restored last."""
        return self._processes.is_writer and not self._is_saved(state)

    def newest(self) -> str:
        """Return the name of the newest verified checkpoint, after waiting for the pending save."""
        self._finish_pending()
        verified = self._store.newest_verified()
        return verified.name if verified else "not written yet"

    def newest_bytes(self) -> int:
        """Return the size of the newest verified checkpoint; 0 if there is none."""
        verified = self._store.newest_verified()
        return directory_bytes(verified) if verified else 0

    def require_present(self) -> None:
        """Raise GoneError if the run's directory or its newest checkpoint is not there any more."""
        self._store.require_present()

    def add_to_environment(self, **facts: str) -> None:
        """Add facts to the environment that is saved with the state from now on."""
        self._environment = {**self._environment, **facts}

    def forget(self) -> None:
        """Save the current state again at the next save: something besides its position has changed."""
        self._saved_position = None

    def postpone(self) -> None:
        """Record that the last started save could not be made: it is retried later, after twice the delay each time."""
        self._policy.save_failed()

    def save(self, state: State) -> None:
        """Save the current state and wait until it is written.

        Raises CheckpointError, which names the last good checkpoint, if it cannot be written.
        """
        with self._whole(state):
            self._processes.save(lambda: self._save(state))

    def _save(self, state: State) -> None:
        self._finish_pending()
        if self._is_saved(state):
            return
        averages = state.averages.averages.values() if state.averages else ()
        if state.update and not self._are_finite(lambda: weights_are_finite(state.model) and all_finite(averages)):
            raise self._non_finite_weights(state.update)
        started_at = time.monotonic()
        self._policy.save_started(state.update)
        saved = self._store.save(state.update, self._pack(state), retained=self.retains(state))
        self._saved_position = _position(state)
        stall_seconds = time.monotonic() - started_at
        self._policy.add_stall(stall_seconds)
        self._record_saved(saved, stall_seconds=stall_seconds, cost=stall_seconds)

    def restore(self, state: State, *, allow_inexact: bool, restored: Restored | None = None) -> bool:
        """Restore `state` from the newest valid checkpoint, or from `restored` if the caller has just loaded it.

        Returns False if there is no checkpoint yet.

        Raises UsageError if the environment of the checkpoint differs and `allow_inexact` is False.
        """
        self._finish_pending()
        self._unprepared_state = state
        restored = restored or self._store.load()
        if restored is None:
            return False
        changed = require_same(saved_environment(restored), self._environment, allow_inexact=allow_inexact)
        retry_with_freed_memory(lambda: state.restore(restored.state), "restoring the checkpoint")
        self._policy.resume(state.update)
        if not changed:
            self._note_machine(notes_on_machine(saved_environment(restored), self._environment))
        if changed:
            self._record.note("from here on the run is not bit-identical to its start: " + "; ".join(changed))
        else:
            self._saved_position = _position(state)
        return True

    def _note_machine(self, notes: list[str]) -> None:
        """Record notes on the machine, once in a session: a state may be restored again."""
        if not self._has_noted_machine:
            for note in notes:
                self._record.note(note)
        self._has_noted_machine = True

    def _prepare(self) -> None:
        """Allocate the memory for copies, once; after the first update the state has all its tensors."""
        state, self._unprepared_state = self._unprepared_state, None
        if state:
            self._preparation = self._thread.submit(self._copy.prepare, snapshot(self._pack(state)))

    def _is_saved(self, state: State) -> bool:
        return self._saved_position == _position(state)

    def _pack(self, state: State) -> dict[str, Any]:
        return {**state.pack(), "environment": self._environment}

    def _write(
        self, update: int, copy: Snapshot, trained_names: frozenset[str], is_retained: bool
    ) -> Saved | Failure | None:
        """Write a checkpoint of `copy`, in the background thread. Returns None if its weights are not finite."""

        def write() -> Saved | None:
            copy.wait()
            weights = copy.sections["model"].tensors
            averages = copy.sections["averaged"].tensors if "averaged" in copy.sections else {}
            tensors = [*(weights[name] for name in trained_names & weights.keys()), *averages.values()]
            if not self._are_finite(lambda: all_finite(tensors)):
                return None
            return self._store.write(update, copy, retained=is_retained)

        return catch_out_of_memory(write)

    def _are_finite(self, check: Callable[[], bool]) -> bool:
        """Return whether the check passes in all processes that save."""
        return self._processes.are_finite(check())

    def _finish_pending(self) -> None:
        """Wait for the pending save, if there is one, and process its result."""
        if not self._pending:
            return
        pending, self._pending = self._pending, None
        started_at = time.monotonic()
        saved, failure = _result(pending.written)
        waiting_seconds = time.monotonic() - started_at
        self._policy.add_stall(waiting_seconds)
        if saved is None:
            self._saved_position = None
            self._policy.save_failed()
            if not failure:
                raise self._non_finite_weights(pending.update)
            self._record.unsaved(pending.update, "checkpoint", failure)
            return
        stall_seconds = pending.stall_seconds + waiting_seconds
        cost = stall_seconds + saved.cpu_seconds
        self._record_saved(saved, stall_seconds=stall_seconds, cost=cost, write_seconds=saved.seconds)

    def _non_finite_weights(self, update: int) -> RunError:
        return self.non_finite_error(update, "largest weight", math.nan)

    def _may_stop_during_save(self) -> bool:
        """Return whether the session may have to stop before a save that starts now is written."""
        remaining = self._deadline.remaining()
        return remaining is not None and remaining - self._deadline.stopping_seconds() <= self._slowest_seconds

    def _record_saved(
        self, saved: Saved, *, stall_seconds: float, cost: float, write_seconds: float | None = None
    ) -> None:
        seconds = max(saved.seconds, stall_seconds)
        self._slowest_seconds = max(self._slowest_seconds, seconds)
        self._deadline.observe("save", seconds)
        self._policy.save_completed(cost=cost, write_seconds=write_seconds)
        self._record.saved(saved, stall_seconds=stall_seconds)


def _use_one_thread() -> None:
    """Give the calling thread no OpenMP threads of its own.

    If a process has more of them than there are cores, GNU's OpenMP puts those that wait for the next kernel to sleep
    (`gomp_throttled_spin_count_var`), including training's own: updates of a small model took 2.6 times as long.
    """
    torch.set_num_threads(1)
    torch.get_num_threads()  # applies the number here; otherwise the thread's first kernel would determine it anew


def saved_environment(restored: Restored) -> dict[str, Any]:
    """Return the environment of a checkpoint. Raises CheckpointError if it has none."""
    saved = restored.state.get("environment")
    if not isinstance(saved, dict) or not all(isinstance(name, str) for name in saved):
        raise CheckpointError(
            f"{restored.path} does not contain the environment that it was saved in, so nothing shows whether the run "
            "would continue bit for bit",
            hint="copy the checkpoint again from its source",
        )
    return saved


def _position(state: State) -> tuple[int, int]:
    return state.update, len(state.history)


def _result(written: "Future[Saved | Failure | None]") -> tuple[Saved | None, str]:
    """Return the written checkpoint, or None and the reason; the reason is empty if the weights are not finite.

    Raises GoneError, since saving again later would not succeed either.
    """
    try:
        saved = written.result()
    except GoneError:
        raise
    except CheckpointError as error:
        return None, str(error)
    if isinstance(saved, Failure):
        free_unused_memory()
        return None, f"out of memory while writing a checkpoint: {saved.message}"
    return saved, ""
