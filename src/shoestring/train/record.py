"""What a session tells: the run's state.json, its events, and the person who waits."""

import os
import platform
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from shoestring.checkpoint.store import Saved
from shoestring.errors import ShoestringError
from shoestring.hardware.probe import machine
from shoestring.monitor.events import Events
from shoestring.monitor.progress import Progress
from shoestring.recipe import LoadedRecipe
from shoestring.session.deadline import Deadline
from shoestring.session.directory import RunDirectory
from shoestring.settings import Settings
from shoestring.units import count_text, seconds_text
from shoestring.version import __version__


class Record:
    """One session's account. A session that ends by an exception is recorded as failed when it is left."""

    def __init__(self, run: RunDirectory, loaded: LoadedRecipe, total_updates: int, deadline: Deadline) -> None:
        self.events = Events(run.events_file)
        self.progress = Progress(total_updates=total_updates)
        self.update = 0
        self._run, self._loaded, self._total, self._deadline = run, loaded, total_updates, deadline
        self._spent = {"saving": 0.0, "evaluating": 0.0}
        self._started_at = 0
        self._metrics: dict[str, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is not None:
            what = error.message if isinstance(error, ShoestringError) else f"{type(error).__name__}: {error}"
            self._end("failed", what)
        self.events.close()

    def started(self, update: int, *, target: str, device: str, settings: Settings) -> None:
        """The session begins with `update` updates done."""
        self._started_at = self.update = update
        self.events.emit(
            "session",
            update=update,
            limit_seconds=self._deadline.limit_seconds,
            target=target,
            device=device,
            micro_batch=settings.micro_batch,
            precision=settings.precision,
            machine=machine(),
            versions={"shoestring": __version__, "python": platform.python_version(), "torch": torch.__version__},
            pid=os.getpid(),
        )
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

    def damaged(self, path: Path, file: str, why: str) -> None:
        """A checkpoint was passed over."""
        self.events.emit("damaged", path=str(path.name), file=file, why=why)
        self.progress.message(f"damaged: {path.name}/{file}: {why}; falling back to the checkpoint before")

    def saved(self, saved: Saved) -> None:
        """A full checkpoint was written."""
        self._spent["saving"] += saved.seconds
        self.update = saved.update
        self.events.emit("save", update=saved.update, bytes=saved.bytes, seconds=saved.seconds, kind="full")
        self._write_state("running", "")

    def saved_light(self, path: Path, update: int, seconds: float, kind: str) -> None:
        """Weights to use were written."""
        self._spent["saving"] += seconds
        self.events.emit("save", update=update, bytes=path.stat().st_size, seconds=seconds, kind=kind)

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
        if status == "paused" and update == self._started_at and self._deadline.limit_seconds:
            self.progress.message(
                f"no update fitted into this session of {seconds_text(self._deadline.limit_seconds)}: starting took "
                f"{seconds_text(self._deadline.elapsed())} of it; give it more time"
            )

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
        self._write_state(status, reason)

    def _write_state(self, status: str, reason: str) -> None:
        again = f"shoestring train {self._loaded.reference or self._loaded.name} --run {self._run.path}"
        self._run.write_state(
            {
                "status": status,
                "update": self.update,
                "total_updates": self._total,
                "reason": reason,
                "next": f"shoestring report {self._run.path}" if status == "finished" else again,
                "metrics": self._metrics,
            }
        )
