"""The record of a session: what happens in it, as events of the run and as progress messages for the user."""

import json
import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from shoestring.base.errors import RunError, ShoestringError, UsageError
from shoestring.base.reading import number
from shoestring.base.settings import Settings
from shoestring.base.streams import SilentStream
from shoestring.base.system_errors import explaining
from shoestring.base.units import count_text, plural, seconds_text
from shoestring.hardware.probe import machine
from shoestring.recipe.options import LoadedRecipe
from shoestring.techniques.parameter_count import ParameterCount
from shoestring.training.checkpoint.store import Saved
from shoestring.training.engine.parallel.errors import PeerLostError
from shoestring.training.engine.recovery import OutOfMemory
from shoestring.training.monitor.events import Events, NoEvents, read, state_digest
from shoestring.training.monitor.host_memory import host_memory
from shoestring.training.monitor.progress import Progress
from shoestring.training.monitor.time_breakdown import compute_breakdown, describe_breakdown
from shoestring.training.processes.one_process import ONE_PROCESS, Processes
from shoestring.training.record_files import RecordFiles
from shoestring.training.run_directory import trust
from shoestring.training.run_directory.directory import RunDirectory
from shoestring.training.run_directory.stored import StoredState
from shoestring.training.session.deadline import Deadline
from shoestring.training.session.ledger import SessionRecord, sessions, slowest_durations
from shoestring.training.session.stop import SessionOver
from shoestring.version import __version__

_MOST_EVIDENCE = 300_000
"""Characters: an event has to be smaller than the end of a record in which the last one is searched."""
_RECORD_ERRORS = (OSError, UsageError)
"""Errors of reading the events, and of writing a sum of them."""


class Record:
    """Records one session. As a context manager it records an exception as a failed session, or as a paused one if the
    session had to stop before training started.
    """

    def __init__(
        self,
        run: RunDirectory,
        loaded: LoadedRecipe | None,
        deadline: Deadline,
        *,
        target: str,
        folds: int = 1,
        processes: Processes = ONE_PROCESS,
    ) -> None:
        """`loaded` is the recipe, None in a script with a trainer of its own; `target` is the name of the requested
        target, `folds` that of the runs of a cross-validation that go on together; `deadline` receives the durations
        measured in earlier sessions. Of several processes that train together, all but the first one read what that has
        recorded, and write and print nothing.
        """
        is_writer = processes.is_first
        self._run, self._loaded, self._deadline, self._target = run, loaded, deadline, target
        self._processes = processes.count
        self._earlier: list[SessionRecord] = []
        self._is_started = False
        self.is_ended = False
        """Whether the end of the session is recorded."""
        self._is_writer = is_writer
        self.progress = Progress(total_updates=0, stream=None if is_writer else SilentStream())
        with explaining(f"{run.events_file} cannot be used", ", then train again"):
            for kind, seconds in slowest_durations(read(run.events_file)).items():
                deadline.expect(kind, seconds)
            # This session's events start at the end of those of earlier sessions.
            self._offset = run.events_file.stat().st_size if run.events_file.exists() else 0
            self._files = RecordFiles(run, loaded, target=target, folds=folds, is_writer=is_writer)
            self.events: Events | NoEvents = (
                Events(run.events_file, self.progress.message) if is_writer else NoEvents(run.events_file)
            )
        identity = run.identity()
        self._run_id = identity.id if identity else ""
        state = run.state()
        self._has_state, before = state is not None, state or StoredState()
        self.update = self._first_update = before.update
        self._metrics, self.test_weights = before.metrics, before.test_weights
        self._seconds_by_kind = {"saving": 0.0, "evaluating": 0.0}
        self._answer_seconds: dict[int, float] | None = None
        self.expect(before.total_updates)
        self._deciding_metric = loaded.parts.evaluation.best[0] if loaded else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if isinstance(error, SessionOver):
                self._require_recorded("paused", self._end("paused", error.reason))
            elif isinstance(error, UsageError) and not self._is_started and self._has_state:
                pass  # a command that is refused leaves the run as it was
            elif error is not None and not self.is_ended and not isinstance(error, PeerLostError):
                reason = error.message if isinstance(error, ShoestringError) else f"{type(error).__name__}: {error}"
                self._files.write_traceback(error)
                # The error itself is what the user sees; that it could not be recorded is a part of it.
                if unrecorded := self._end("failed", reason):
                    _add_problem(error, unrecorded)
        finally:
            self.events.close()
            self._files.close()

    def expect(self, total_updates: int) -> None:
        """Set the total number of updates of the run."""
        self._total = total_updates
        self.progress.expect(total_updates)

    def started(self, update: int, *, device: str, settings: Settings, parameters: ParameterCount) -> None:
        """Record the start of the session, after `update` completed updates."""
        self._first_update = self.update = update
        self._is_started = True
        self.events.emit(
            "session",
            update=update,
            limit_seconds=self._deadline.limit_seconds,
            startup_seconds=self._deadline.elapsed(),
            target=self._target,
            device=device,
            parameters=parameters.json(),
            micro_batch=settings.micro_batch,
            precision=settings.precision,
            processes=self._processes,
            machine=_machine(),
            versions={"shoestring": __version__, "python": platform.python_version(), "torch": torch.__version__},
            pid=os.getpid(),
            **({"run": self._run_id} if self._run_id else {}),
            **host_memory().json(),
        )
        self._record_earlier_sessions()
        self._files.write_running(self._state("running", ""))
        limit = self._deadline.limit_seconds
        self.progress.message(
            f"session {self.events.session}: {'continues at' if update else 'begins at'} update "
            f"{count_text(update)} of {count_text(self._total)}, {parameters}, "
            + (f"{self._processes} processes ({settings.sharding or 'ddp'}), " if self._processes > 1 else "")
            + (f"limit {seconds_text(limit)}" if limit else "no time limit")
        )

    def memory(self, update: int, micro_batch: int) -> None:
        """Record the host memory before an update that may need more than there is."""
        self.events.emit("memory", update=update, micro_batch=micro_batch, **host_memory().json())

    def note(self, message: str) -> None:
        """Record a note for the user."""
        self.events.emit("note", message=message)
        self.progress.message(f"note: {message}")

    def unseeded(self, source: str, message: str) -> None:
        """Record that the run cannot be repeated bit for bit, because its "data" or "loss" has unseeded numbers."""
        self.events.emit("unseeded", update=self.update, source=source, message=message)
        self.progress.message(f"note: {message}")

    def trust_recipe(self) -> None:
        """Record the digests of the recipe's files, which the person has named: `evaluate` may execute them."""
        if self._is_writer and self._loaded and self._loaded.source and (note := trust.remember(self._loaded.source)):
            self.note(note)

    def out_of_memory(self, during: str, event: OutOfMemory, *, update: int, back_to: int | None = None) -> None:
        """Record an out-of-memory event; `back_to` is the update of the checkpoint that training resumes from."""
        restored = {} if back_to is None else {"back_to": back_to}
        failed = {"failure": event.failure, "micro_batch": event.micro_batch, "done": event.action}
        self.events.emit("oom", update=update, during=during, **failed, **restored)
        place = "" if during == "update" else f" in {during}"
        self.progress.message(
            f"out of memory{place} at update {count_text(update)} with microbatch {event.micro_batch}: continuing "
            f"with {event.action}; the effective batch is unchanged"
            + ("" if back_to is None else f"; resuming from update {count_text(back_to)}")
        )

    def damaged(self, path: Path, file: str, reason: str) -> None:
        """Record that a damaged checkpoint was skipped."""
        self.events.emit("damaged", path=str(path.name), file=file, why=reason)
        self.progress.message(f"damaged: {path.name}/{file}: {reason}; falling back to the previous checkpoint")

    def saved(self, saved: Saved, *, stall_seconds: float) -> None:
        """Record that a full checkpoint was written, for which training was stalled for `stall_seconds`."""
        self._seconds_by_kind["saving"] += stall_seconds
        self.update = saved.update
        self.events.emit(
            "save",
            update=saved.update,
            bytes=saved.bytes,
            seconds=saved.seconds,
            stall_seconds=stall_seconds,
            kind="full",
        )
        for path in saved.freed:
            self.note(f"the disk is full: {path} was removed to make space for {saved.path.name}")
        self._files.write_running(self._state("running", ""))

    def saved_light(self, path: Path, update: int, seconds: float, kind: str) -> None:
        """Record that weights alone were written, without the state that training needs to resume."""
        self._seconds_by_kind["saving"] += seconds
        self.events.emit("save", update=update, bytes=_size(path), seconds=seconds, stall_seconds=seconds, kind=kind)

    def unsaved(self, update: int, kind: str, reason: str) -> None:
        """Record that a checkpoint or weights (the `kind`) could not be written; training continues."""
        self.events.emit("unsaved", update=update, what=kind, why=reason)
        self.progress.message(f"not saved: {reason}\ntraining continues, and saving will be retried")

    def evaluated(
        self,
        part: str,
        update: int,
        metrics: dict[str, Any],
        *,
        epoch: int,
        seconds: float,
        best: bool,
        evidence: Mapping[str, Any] | None = None,
    ) -> None:
        """Record the metrics of one part of the data, and their evidence if it is small enough for an event."""
        self._seconds_by_kind["evaluating"] += seconds
        if best or part == "test":
            self._metrics[part] = metrics
        if evidence and len(json.dumps(evidence)) > _MOST_EVIDENCE:
            self.note(f"the evidence of the {part} metrics is not recorded: more than {_MOST_EVIDENCE:,} characters")
            evidence = None
        self.events.emit(
            "evaluation",
            update=update,
            epoch=epoch,
            part=part,
            metrics=metrics,
            seconds=seconds,
            best=best,
            **({"evidence": evidence} if evidence else {}),
        )
        name = self._deciding_metric
        values = [
            f"{metric} {value:.4g}"
            for metric, value in metrics.items()
            if isinstance(value, int | float) and name in (metric, None)
        ]
        if part == "validation" and values:
            when = f"epoch {epoch}" if name else f"update {count_text(update)}"
            self.progress.message(f"{when}: validation {' · '.join(values)}{' (best)' if best else ''}")

    def answer_seconds(self) -> dict[int, float]:
        """Return how long answering the held-out prompts has taken, in this session and earlier ones, by update."""
        if self._answer_seconds is None:
            self._answer_seconds = {}
            with suppress(*_RECORD_ERRORS):
                for event in read(self._run.events_file):
                    if event["event"] == "answers":
                        self._answer_seconds[event.get("update", 0)] = number(event.get("seconds")) or 0.0
        return self._answer_seconds

    def add_answers(
        self, update: int, rows: list[dict[str, Any]], *, epoch: int, seconds: float, skipped: str = ""
    ) -> None:
        """Record the answers to held-out prompts; without rows the reason why they were `skipped`."""
        self.answer_seconds()[update] = seconds
        self._seconds_by_kind["evaluating"] += seconds
        self.events.emit("answers", update=update, epoch=epoch, rows=rows, seconds=seconds, skipped=skipped)
        if rows:
            stopped = sum(row["stopped"] is True for row in rows)
            when = f"after epoch {epoch}" if update else "before training"
            self.progress.message(
                f"{when}: {plural(len(rows), 'held-out prompt')} answered in {seconds_text(seconds)}, "
                f"{count_text(stopped)} of the answers ended by themselves"
            )

    def session_ended(self, status: str, reason: str, update: int, metrics: dict[str, Any]) -> None:
        """Record the end of the session."""
        self.update, self._metrics, self.is_ended = update, metrics, True
        self._require_recorded(status, self._end(status, reason))
        with suppress(*_RECORD_ERRORS):  # a message only
            if self._is_writer:
                self.progress.message(describe_breakdown(compute_breakdown(read(self._run.events_file, self._offset))))

    def was_saved(self, kind: str) -> bool:
        """Return whether this run has ever written weights of the `kind` (best, light or epoch)."""
        with suppress(*_RECORD_ERRORS):
            events = read(self._run.events_file)
            return any(event["event"] == "save" and event.get("kind") == kind for event in events)
        return False

    def _end(self, status: str, reason: str) -> str:
        """Record the end of the session. Returns why state.json could not be written; empty if it was."""
        state = self._state(status, reason)
        self.events.emit(
            "stop",
            update=self.update,
            status=status,
            reason=reason,
            seconds=self._deadline.elapsed(),
            saving_seconds=self._seconds_by_kind["saving"],
            evaluating_seconds=self._seconds_by_kind["evaluating"],
            updates=self.update - self._first_update,
            state_sha256=state_digest(state.json()),
        )
        if self.events.lost:
            self.progress.message(
                f"note: {plural(self.events.lost, 'event')} at the end could not be written to "
                f"{self._run.events_file}: {self.events.why_lost}"
            )
        unrecorded = self._files.write_end(state)
        self._write_ledger(status)
        is_at_limit = status == "paused" and reason == self._deadline.limit_text()
        if is_at_limit and self.update == self._first_update and self._deadline.limit_seconds:
            self.progress.message(
                f"no update fit into this session of {seconds_text(self._deadline.limit_seconds)}, of which startup "
                f"took {seconds_text(self._deadline.elapsed())}; set a longer limit"
            )
        return unrecorded

    def _record_earlier_sessions(self) -> None:
        """Write the ledger with all earlier sessions; the last of them may have been killed."""
        with suppress(*_RECORD_ERRORS):
            records = sessions(read(self._run.events_file), "killed")  # an earlier one without an end
            # On a full disk, the events of this session may be lost.
            self._earlier = [record for record in records if record.number < self.events.session]
        self._write_ledger("running")
        if self._earlier and self._earlier[-1].ended == "killed":
            last = self._earlier[-1]
            repeated = f"{count_text(last.redone_updates)} updates after its last save are repeated"
            self.note(
                f"session {last.number} was killed after {seconds_text(last.seconds)}: "
                + (repeated if last.redone_updates else "no update after its last save is recorded")
            )

    def _state(self, status: str, reason: str) -> StoredState:
        state = self._files.state(
            status,
            reason,
            update=self.update,
            total_updates=self._total,
            metrics=self._metrics,
            test_weights=self.test_weights,
        )
        return replace(state, run=self._run_id)

    def _write_ledger(self, status: str) -> None:
        """Write the ledger, a sum of the events. It can be computed again, so a failure is no error."""
        try:
            self._files.write_ledger(lambda: [*self._earlier, *self._current(status)])
        except _RECORD_ERRORS as error:
            self.progress.message(f"not written: {self._run.ledger_file}: {error}")

    def _current(self, status: str) -> list[SessionRecord]:
        return sessions(read(self._run.events_file, self._offset), status)

    def _require_recorded(self, status: str, unrecorded: str) -> None:
        """Raise RunError if the end of the session with this `status` could not be written to state.json."""
        if unrecorded:
            raise RunError(
                f"the session is {status}, but {unrecorded}",
                hint=f"make {self._run.path} writable, then train again: the run continues from its newest checkpoint",
            )


def _add_problem(error: BaseException, problem: str) -> None:
    """Add to an error that it could not be recorded."""
    if isinstance(error, ShoestringError):
        error.problems = (*error.problems, problem)
    else:
        error.add_note(problem)


def _size(path: Path) -> int:
    """Return the size of a file that was just written; 0 if the system cannot tell."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _machine() -> dict[str, Any]:
    """Return the facts about this machine; none if its driver does not respond, which is only reported here."""
    try:
        return machine()
    except Exception:  # noqa: BLE001  (NVMLError, and errors of the bindings with another driver)
        return {}
