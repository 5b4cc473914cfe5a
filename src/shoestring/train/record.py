"""What a session tells: the run's state.json, its events, and the person who waits."""

import dataclasses
import os
import platform
import shlex
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from shoestring.checkpoint.files import is_full, write_json
from shoestring.checkpoint.store import Saved
from shoestring.engine.recovery import OutOfMemory
from shoestring.errors import ShoestringError
from shoestring.hardware.probe import machine
from shoestring.monitor.bound import spent, told
from shoestring.monitor.events import Events, read
from shoestring.monitor.progress import Progress
from shoestring.recipe.options import LoadedRecipe
from shoestring.session.deadline import Deadline
from shoestring.session.directory import RunDirectory
from shoestring.session.ledger import SessionRecord, ledger, sessions, slowest
from shoestring.session.stop import SessionOver
from shoestring.session.stored import StoredState
from shoestring.settings import Settings
from shoestring.units import count_text, seconds_text
from shoestring.version import __version__


class Record:
    """One session's account. A session that ends by an exception is recorded as failed when it is left, or as paused
    when it had to stop before it could begin.
    """

    def __init__(self, run: RunDirectory, loaded: LoadedRecipe | None, deadline: Deadline, *, target: str) -> None:
        """`loaded` is what is trained, None in somebody's own script; `target` is where the run was asked to be;
        `deadline` is told what this session must expect.
        """
        self._run, self._loaded, self._deadline, self._target = run, loaded, deadline, target
        self._earlier: list[SessionRecord] = []
        for kind, seconds in slowest(read(run.events_file)).items():
            deadline.observe(kind, seconds)
        # The events of this session begin where those of the others end.
        self._offset = run.events_file.stat().st_size if run.events_file.exists() else 0
        before = run.state() or StoredState()
        self.update = self._started_at = before.update
        self._total, self._metrics = before.total_updates, before.metrics
        self._spent = {"saving": 0.0, "evaluating": 0.0}
        self.events = Events(run.events_file)
        self.progress = Progress(total_updates=self._total)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if isinstance(error, SessionOver):
            self._end("paused", error.reason)
        elif error is not None:
            what = error.message if isinstance(error, ShoestringError) else f"{type(error).__name__}: {error}"
            self._end("failed", what)
        self.events.close()

    def expect(self, total_updates: int) -> None:
        """The run is to have this many updates."""
        self._total = total_updates
        self.progress.expect(total_updates)

    def started(self, update: int, *, device: str, settings: Settings) -> None:
        """The session begins with `update` updates done."""
        self._started_at = self.update = update
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
        self._account_for_earlier()
        self._write_state("running", "")
        limit = self._deadline.limit_seconds
        self.progress.message(
            f"session {self.events.session}: {'continues at' if update else 'begins at'} update "
            f"{count_text(update)} of {count_text(self._total)}, "
            + (f"limit {seconds_text(limit)}" if limit else "no time limit")
        )

    def note(self, message: str) -> None:
        """Something the person should know."""
        self.events.emit("note", message=message)
        self.progress.message(f"note: {message}")

    def out_of_memory(self, during: str, event: OutOfMemory, *, update: int, back_to: int | None = None) -> None:
        """Memory ran out and something was done about it; `back_to` is the update of the checkpoint gone back to."""
        back = {} if back_to is None else {"back_to": back_to}
        self.events.emit("oom", update=update, during=during, **dataclasses.asdict(event), **back)
        self.progress.message(
            f"out of memory in {during} at update {count_text(update)} with microbatch {event.micro_batch}: now "
            f"{event.done}; the effective batch stays"
            + ("" if back_to is None else f"; back to update {count_text(back_to)}")
        )

    def damaged(self, path: Path, file: str, why: str) -> None:
        """A checkpoint was passed over."""
        self.events.emit("damaged", path=str(path.name), file=file, why=why)
        self.progress.message(f"damaged: {path.name}/{file}: {why}; falling back to the checkpoint before")

    def saved(self, saved: Saved, *, stall_seconds: float) -> None:
        """A full checkpoint was written; training stood still for `stall_seconds` of it."""
        self._spent["saving"] += stall_seconds
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
            self.note(f"the disk is full: {path} was removed to make room for {saved.path.name}")
        self._write_state("running", "")

    def saved_light(self, path: Path, update: int, seconds: float, kind: str) -> None:
        """Weights to use were written."""
        self._spent["saving"] += seconds
        self.events.emit(
            "save", update=update, bytes=path.stat().st_size, seconds=seconds, stall_seconds=seconds, kind=kind
        )

    def unsaved(self, update: int, what: str, why: str) -> None:
        """A checkpoint or weights could not be written, and training goes on."""
        self.events.emit("unsaved", update=update, what=what, why=why)
        self.progress.message(f"not saved: {why}\ntraining goes on, and saving is tried again")

    def evaluated(
        self, part: str, update: int, metrics: dict[str, Any], *, epoch: int, seconds: float, best: bool
    ) -> None:
        """Metrics of one part of the data."""
        self._spent["evaluating"] += seconds
        if best or part == "test":
            self._metrics[part] = metrics
        self.events.emit(
            "evaluation", update=update, epoch=epoch, part=part, metrics=metrics, seconds=seconds, best=best
        )

    def ended(self, status: str, reason: str, update: int, metrics: dict[str, Any]) -> None:
        """The session is over."""
        self.update, self._metrics = update, metrics
        self._end(status, reason)
        self.progress.message(told(spent(read(self._run.events_file, self._offset))))

    def _end(self, status: str, reason: str) -> None:
        self.events.emit(
            "stop",
            update=self.update,
            status=status,
            reason=reason,
            seconds=self._deadline.elapsed(),
            saving_seconds=self._spent["saving"],
            evaluating_seconds=self._spent["evaluating"],
            updates=self.update - self._started_at,
        )
        self._write_ledger(status)
        self._write_state(status, reason)
        if status == "paused" and self.update == self._started_at and self._deadline.limit_seconds:
            self.progress.message(
                f"no update fitted into this session of {seconds_text(self._deadline.limit_seconds)}: starting took "
                f"{seconds_text(self._deadline.elapsed())} of it; give it more time"
            )

    def _account_for_earlier(self) -> None:
        """The ledger of all sessions up to the beginning of this one; the last may have died without a word."""
        *self._earlier, _ = sessions(read(self._run.events_file), "running")
        self._write_ledger("running")
        if self._earlier and self._earlier[-1].ended == "killed":
            last = self._earlier[-1]
            lost = f"{count_text(last.redone_updates)} updates after its last save are done again"
            self.note(
                f"session {last.number} died without a word after {seconds_text(last.seconds)}: "
                + (lost if last.redone_updates else "nothing of it is lost")
            )

    def _write_ledger(self, status: str) -> None:
        write_json(self._run.ledger_file, ledger([*self._earlier, *self._this(status)]))

    def _this(self, status: str) -> list[SessionRecord]:
        return sessions(read(self._run.events_file, self._offset), status)

    def _write_state(self, status: str, reason: str) -> None:
        state = StoredState(
            status=status,
            update=self.update,
            total_updates=self._total,
            reason=reason,
            next=f"shoestring report {self._run.path}" if status == "finished" else self._again(),
            metrics=self._metrics,
        )
        try:
            state.write(self._run.state_file)
        except OSError as error:
            # Of no use to a run whose disk is full: the one before still stands, and what matters is the checkpoint.
            if status != "running" or not is_full(error):
                raise

    def _again(self) -> str:
        """What continues the run."""
        if self._loaded is None:
            return f"the script that began {self._run.path}, again"
        return shlex.join(
            ["shoestring", "train", self._loaded.reference or self._loaded.name, "--run", str(self._run.path)]
            + (["--on", self._target] if self._target != "local" else [])
        )
