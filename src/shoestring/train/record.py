"""The record of a session: the run's state.json, its events and ledger, and progress messages for the user."""

import dataclasses
import os
import platform
import shlex
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from shoestring.checkpoint.files import is_disk_full, write_json
from shoestring.checkpoint.store import Saved
from shoestring.engine.recovery import OutOfMemory
from shoestring.errors import ShoestringError
from shoestring.hardware.probe import machine
from shoestring.monitor.events import Events, read, state_digest
from shoestring.monitor.progress import Progress
from shoestring.monitor.time_breakdown import compute_breakdown, describe_breakdown
from shoestring.recipe.options import LoadedRecipe
from shoestring.session import trust
from shoestring.session.deadline import Deadline
from shoestring.session.directory import RunDirectory
from shoestring.session.ledger import SessionRecord, ledger, sessions, slowest_durations
from shoestring.session.stop import SessionOver
from shoestring.session.stored import StoredState
from shoestring.settings import Settings
from shoestring.units import count_text, seconds_text
from shoestring.version import __version__


class Record:
    """Records one session. As a context manager it records an exception as a failed session, or as a paused one if the
    session had to stop before training started.
    """

    def __init__(self, run: RunDirectory, loaded: LoadedRecipe | None, deadline: Deadline, *, target: str) -> None:
        """`loaded` is the recipe, None in a script with a trainer of its own; `target` is the name of the requested
        target; `deadline` receives the durations measured in earlier sessions.
        """
        self._run, self._loaded, self._deadline, self._target = run, loaded, deadline, target
        self._earlier: list[SessionRecord] = []
        for kind, seconds in slowest_durations(read(run.events_file)).items():
            deadline.observe(kind, seconds)
        # This session's events start at the end of those of earlier sessions.
        self._offset = run.events_file.stat().st_size if run.events_file.exists() else 0
        before = run.state() or StoredState()
        self.update = self._first_update = before.update
        self._total, self._metrics = before.total_updates, before.metrics
        self._seconds_by_kind = {"saving": 0.0, "evaluating": 0.0}
        self._deciding_metric = loaded.parts.best[0] if loaded else "loss"
        self.events = Events(run.events_file)
        self.progress = Progress(total_updates=self._total)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, SessionOver):
            self._end("paused", error.reason)
        elif error is not None:
            reason = error.message if isinstance(error, ShoestringError) else f"{type(error).__name__}: {error}"
            self._end("failed", reason)
        self.events.close()

    def expect(self, total_updates: int) -> None:
        """Set the total number of updates of the run."""
        self._total = total_updates
        self.progress.expect(total_updates)

    def started(self, update: int, *, device: str, settings: Settings) -> None:
        """Record the start of the session, after `update` completed updates."""
        self._first_update = self.update = update
        self.events.emit(
            "session",
            update=update,
            limit_seconds=self._deadline.limit_seconds,
            startup_seconds=self._deadline.elapsed(),
            target=self._target,
            device=device,
            micro_batch=settings.micro_batch,
            precision=settings.precision,
            machine=machine(),
            versions={"shoestring": __version__, "python": platform.python_version(), "torch": torch.__version__},
            pid=os.getpid(),
        )
        self._record_earlier_sessions()
        self._write_state("running", "")
        limit = self._deadline.limit_seconds
        self.progress.message(
            f"session {self.events.session}: {'continues at' if update else 'begins at'} update "
            f"{count_text(update)} of {count_text(self._total)}, "
            + (f"limit {seconds_text(limit)}" if limit else "no time limit")
        )

    def note(self, message: str) -> None:
        """Record a note for the user."""
        self.events.emit("note", message=message)
        self.progress.message(f"note: {message}")

    def trust_recipe(self) -> None:
        """Record the digests of the recipe's files, which the person has named: `evaluate` may execute them."""
        if self._loaded and self._loaded.source and (note := trust.remember(self._loaded.source)):
            self.note(note)

    def out_of_memory(self, during: str, event: OutOfMemory, *, update: int, back_to: int | None = None) -> None:
        """Record an out-of-memory event; `back_to` is the update of the checkpoint that training resumes from."""
        restored = {} if back_to is None else {"back_to": back_to}
        failed = {"failure": event.failure, "micro_batch": event.micro_batch, "done": event.action}
        self.events.emit("oom", update=update, during=during, **failed, **restored)
        self.progress.message(
            f"out of memory in {during} at update {count_text(update)} with microbatch {event.micro_batch}: continuing "
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
        self._write_state("running", "")

    def saved_light(self, path: Path, update: int, seconds: float, kind: str) -> None:
        """Record that weights alone were written, without the state that training needs to resume."""
        self._seconds_by_kind["saving"] += seconds
        self.events.emit(
            "save", update=update, bytes=path.stat().st_size, seconds=seconds, stall_seconds=seconds, kind=kind
        )

    def unsaved(self, update: int, kind: str, reason: str) -> None:
        """Record that a checkpoint or weights (the `kind`) could not be written; training continues."""
        self.events.emit("unsaved", update=update, what=kind, why=reason)
        self.progress.message(f"not saved: {reason}\ntraining continues, and saving will be retried")

    def evaluated(
        self, part: str, update: int, metrics: dict[str, Any], *, epoch: int, seconds: float, best: bool
    ) -> None:
        """Record the metrics of one part of the data."""
        self._seconds_by_kind["evaluating"] += seconds
        if best or part == "test":
            self._metrics[part] = metrics
        self.events.emit(
            "evaluation", update=update, epoch=epoch, part=part, metrics=metrics, seconds=seconds, best=best
        )
        name = self._deciding_metric
        if part == "validation" and isinstance(metrics.get(name), int | float):
            self.progress.message(f"epoch {epoch}: validation {name} {metrics[name]:.4g}{' (best)' if best else ''}")

    def session_ended(self, status: str, reason: str, update: int, metrics: dict[str, Any]) -> None:
        """Record the end of the session."""
        self.update, self._metrics = update, metrics
        self._end(status, reason)
        self.progress.message(describe_breakdown(compute_breakdown(read(self._run.events_file, self._offset))))

    def _end(self, status: str, reason: str) -> None:
        self.events.emit(
            "stop",
            update=self.update,
            status=status,
            reason=reason,
            seconds=self._deadline.elapsed(),
            saving_seconds=self._seconds_by_kind["saving"],
            evaluating_seconds=self._seconds_by_kind["evaluating"],
            updates=self.update - self._first_update,
            state_sha256=state_digest(dataclasses.asdict(self._state(status, reason))),
        )
        self._write_ledger(status)
        self._write_state(status, reason)
        if status == "paused" and self.update == self._first_update and self._deadline.limit_seconds:
            self.progress.message(
                f"no update fit into this session of {seconds_text(self._deadline.limit_seconds)}, of which startup "
                f"took {seconds_text(self._deadline.elapsed())}; set a longer limit"
            )

    def _record_earlier_sessions(self) -> None:
        """Write the ledger with all earlier sessions; the last of them may have been killed."""
        *self._earlier, _ = sessions(read(self._run.events_file), "running")
        self._write_ledger("running")
        if self._earlier and self._earlier[-1].ended == "killed":
            last = self._earlier[-1]
            repeated = f"{count_text(last.redone_updates)} updates after its last save are repeated"
            self.note(
                f"session {last.number} was killed after {seconds_text(last.seconds)}: "
                + (repeated if last.redone_updates else "no update is lost")
            )

    def _write_ledger(self, status: str) -> None:
        write_json(self._run.ledger_file, ledger([*self._earlier, *self._current(status)]))

    def _current(self, status: str) -> list[SessionRecord]:
        return sessions(read(self._run.events_file, self._offset), status)

    def _write_state(self, status: str, reason: str) -> None:
        try:
            self._state(status, reason).write(self._run.state_file)
        except OSError as error:
            # On a full disk the previous state.json remains, and the checkpoint matters more.
            if status != "running" or not is_disk_full(error):
                raise

    def _state(self, status: str, reason: str) -> StoredState:
        return StoredState(
            status=status,
            update=self.update,
            total_updates=self._total,
            reason=reason,
            next=f"shoestring report {self._run.path}" if status == "finished" else self._resume_command(),
            metrics=self._metrics,
        )

    def _resume_command(self) -> str:
        """Return the command that continues the run."""
        if self._loaded is None:
            return f"run the script that started {self._run.path} again"
        return shlex.join(
            ["shoestring", "train", self._loaded.reference or self._loaded.name, "--run", str(self._run.path)]
            + (["--on", self._target] if self._target != "local" else [])
        )
