"""Tolerant reading of a run's directory: files may be missing or incomplete after a start, a copy or a kill."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoestring.answers.values import lookup
from shoestring.base.errors import UsageError
from shoestring.base.reading import number, read_json
from shoestring.base.system_errors import require_present
from shoestring.base.units import plural
from shoestring.training.checkpoint.files import matches_digest
from shoestring.training.monitor import events as record
from shoestring.training.monitor.events import Event
from shoestring.training.run_directory.directory import RunDirectory
from shoestring.training.run_directory.fold_runs import naming_folds


@dataclass(frozen=True, kw_only=True)
class Run:
    """The contents of a run's files, as far as they can be read."""

    path: Path
    plan: dict[str, Any]
    """plan.json: recipe, options and the plan itself; empty if it cannot be read."""
    state: dict[str, Any]
    """state.json: status, current update, next command; empty if it cannot be read."""
    events: list[Event]
    """All recorded events."""
    current: list[Event]
    """The events without work that was lost and repeated."""
    problems: tuple[str, ...]
    """Messages about files that are missing or cannot be read."""

    @property
    def name(self) -> str:
        return str(lookup(self.plan, "recipe") or self.path.name)

    @property
    def status(self) -> str:
        """`finished`, `paused`, `failed` or `running`; `unknown` if state.json has none."""
        return str(self.state.get("status", "unknown"))

    @property
    def measured_bytes(self) -> float | None:
        """The maximum memory of all progress events."""
        return max(
            (value for event in self.events_of("progress") if (value := number(event.get("memory_bytes")))),
            default=None,
        )

    def events_of(self, kind: str) -> list[Event]:
        """Return the current events of one kind."""
        return [event for event in self.current if event["event"] == kind]


def read(path: Path) -> Run:
    """Read the run in the directory `path`.

    Raises UsageError when `path` is not the directory of a run.
    """
    run = require_run(path)
    problems: list[str] = []
    if not run.events_file.is_file():
        problems.append(f"{run.events_file.name} is missing: the history of the run cannot be shown")
    all_events = _read_events(run.events_file, problems)
    state = read_object(run.state_file, problems)
    if state and record.is_changed(state, all_events):
        problems.append(f"{run.state_file.name} has changed since the last session wrote it")
    return Run(
        path=path,
        plan=read_object(run.plan_file, problems),
        state=state,
        events=all_events,
        current=record.current(all_events),
        problems=tuple(problems),
    )


def require_run(path: Path) -> RunDirectory:
    """Return the run's directory `path`. Raises UsageError when it is none, or when one of its own files is a link."""
    require_present(path, "pass the directory of a run, as created by `shoestring train RECIPE --run DIR`")
    run = RunDirectory(path)
    run_files = (run.plan_file, run.state_file, run.events_file)
    if not any(file.is_file() for file in run_files):
        raise UsageError(
            f"{path} is not a run directory: it contains none of {', '.join(file.name for file in run_files)}",
            hint=naming_folds(path, "pass the directory of a run, as created by `shoestring train RECIPE --run DIR`"),
        )
    run.require_own()
    return run


def read_object(path: Path, problems: list[str]) -> dict[str, Any]:
    """Return the JSON object in a file of a run; an empty one, and a message in `problems`, if it cannot be read."""
    try:
        value = read_json(path, paths=True)
    except FileNotFoundError:
        problems.append(f"{path.name} is missing")
        return {}
    except (OSError, ValueError) as error:
        problems.append(f"{path.name} cannot be read: {error}")
        return {}
    if not isinstance(value, dict):
        problems.append(f"{path.name} is not a JSON object")
        return {}
    if "sha256" in value and not matches_digest(value):
        problems.append(f"{path.name} has changed since it was written: its digest does not match its content")
    return value


def _read_events(path: Path, problems: list[str]) -> list[Event]:
    skipped: list[tuple[int, str]] = []
    try:
        events = list(record.read(path, on_skipped=lambda line, reason: skipped.append((line, reason))))
    except UsageError as error:
        problems.append(error.message)
        return []
    if skipped:
        line, reason = skipped[0]
        problems.append(
            f"{plural(len(skipped), 'line')} of {path.name} cannot be used: a kill may have cut lines off, or the disk "
            f"damaged them; the first is line {line}: {reason}"
        )
    return events
