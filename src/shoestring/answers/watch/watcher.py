"""Reading a run's directory again and again, beside the process that trains."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shoestring.answers.report.run import read_object, require_run
from shoestring.answers.values import lookup, numbers
from shoestring.answers.watch.record import Record, Summary
from shoestring.answers.watch.status import status
from shoestring.answers.watch.view import View
from shoestring.base.reading import number, reason
from shoestring.training.run_directory.directory import RunDirectory
from shoestring.training.run_directory.lock import is_holder_alive

_MEMORY = ("peak_bytes", "low_bytes", "high_bytes", "capacity_bytes")


class Watcher:
    """Reads the run in the directory `path`, and nothing of it twice that has not changed.

    Raises UsageError when `path` is not the directory of a run, nor one that a session is about to fill.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._path, self._clock = path, clock
        self._run = RunDirectory(path)
        self._record = Record(self._run.events_file)
        self._is_run = False
        self._files: dict[Path, tuple[tuple[int, int, int], dict[str, Any], list[str]]] = {}
        self.view()

    def view(self) -> View:
        """Return the run as it is now. Raises UsageError when the directory is not that of a run any more."""
        holder = is_holder_alive(self._path)
        is_planning = holder and not self._run.plan_file.exists()
        if not is_planning and not (self._is_run and self._path.is_dir()):
            require_run(self._path)
            self._is_run = True
        problems: list[str] = []
        plan, state = self._read(self._run.plan_file, problems), self._read(self._run.state_file, problems)
        try:
            self._record.read_new()
        except (OSError, ValueError) as error:
            problems.append(f"{self._run.events_file.name} cannot be read: {reason(error)}")
        return _view(self._path, plan, state, self._record.summary, problems, holder, self._clock())

    def _read(self, file: Path, problems: list[str]) -> dict[str, Any]:
        """Return a JSON file of the run, which is read again if it was replaced; empty while there is none."""
        try:
            entry = file.lstat()
        except OSError:
            return {}
        version = (entry.st_ino, entry.st_mtime_ns, entry.st_size)
        if file not in self._files or self._files[file][0] != version:
            messages: list[str] = []
            self._files[file] = (version, read_object(file, messages), messages)
        problems += self._files[file][2]
        return self._files[file][1]


def _view(
    path: Path,
    plan: dict[str, Any],
    state: dict[str, Any],
    summary: Summary,
    problems: list[str],
    holder: bool | None,
    present_time: float,
) -> View:
    sessions = list(summary.sessions.values())
    last_time = max((session.end for session in sessions), default=None)
    since = max(0.0, present_time - last_time) if last_time is not None else 0.0
    longest_gap = sessions[-1].longest_gap if sessions else 0.0
    current_status = status(state, is_holder_alive=holder, seconds_since_event=since, longest_gap=longest_gap)
    is_training = current_status in ("running", "silent", "killed")
    update = summary.update if is_training else int(number(state.get("update")) or summary.update)
    total = int(number(state.get("total_updates")) or 0)
    planned_seconds = number(lookup(plan, "plan", "time", "update_seconds"))
    left = max(0, total - update)
    seconds_left = summary.speed.seconds_for(left) if total else None
    if seconds_left is None and planned_seconds is not None and total:
        seconds_left = planned_seconds * left
    evaluations = list(summary.evaluations.values())
    best = next((evaluation for evaluation in reversed(evaluations) if evaluation.best), None)
    memory = number(summary.progress.get("memory_bytes"))
    return View(
        run=str(path),
        recipe=str(plan.get("recipe") or path.name),
        status=current_status,
        reason="" if is_training else str(state.get("reason") or ""),
        next=str(state.get("next") or ""),
        device=sessions[-1].device if sessions else "",
        parameters=sessions[-1].parameters if sessions else {},
        session=len(sessions),
        killed_sessions=sum(not session.status for session in sessions[:-1]) + (current_status == "killed"),
        update=update,
        total_updates=total,
        epoch=_integer(summary.progress.get("epoch")),
        loss=summary.loss.last(),
        learning_rate=number(summary.progress.get("learning_rate")),
        rewards={name: value for name, curve in summary.rewards.items() if (value := curve.last()) is not None},
        samples_per_second=summary.speed.samples_per_second(),
        update_seconds=summary.speed.update_seconds(),
        planned_update_seconds=planned_seconds,
        seconds=sum(session.seconds or session.end - session.start for session in sessions),
        seconds_left=0.0 if current_status == "finished" else seconds_left,
        memory_bytes=_integer(memory),
        peak_memory_bytes=_integer(summary.peak_bytes or None),
        planned_memory={
            name: round(value) for name, value in numbers(lookup(plan, "plan", "memory")).items() if name in _MEMORY
        },
        metrics={evaluation.part: evaluation.metrics for evaluation in evaluations},
        best_metrics=best.metrics if best else {},
        best_update=best.update if best else None,
        last_event_time=last_time,
        events=[{"time": event_time, "text": text} for event_time, text in summary.history],
        problems=problems,
        seconds_since_event=since,
        longest_gap=longest_gap,
        loss_curve=summary.loss,
        reward_curves=summary.rewards,
        evaluations=evaluations,
    )


def _integer(value: object) -> int | None:
    parsed = number(value)
    return None if parsed is None else round(parsed)
