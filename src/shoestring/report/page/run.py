"""What a run's directory holds, read with patience: a run that just began, was copied or was killed is still a run."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoestring.errors import UsageError
from shoestring.monitor import events as record
from shoestring.monitor.events import Event
from shoestring.report.values import dig, number
from shoestring.session.directory import RunDirectory


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run as far as its files tell."""

    path: Path
    plan: dict[str, Any]
    """plan.json: recipe, options and the plan itself; empty where there is none."""
    state: dict[str, Any]
    """state.json: status, update reached, what to do next; empty where there is none."""
    events: list[Event]
    """Everything that happened."""
    current: list[Event]
    """The same without work that was lost and done again."""
    problems: tuple[str, ...]
    """Files that are missing or cannot be read."""

    @property
    def name(self) -> str:
        return str(dig(self.plan, "recipe") or self.path.name)

    @property
    def status(self) -> str:
        """`finished`, `paused`, `failed` or `running`; `unknown` where nothing says so."""
        return str(self.state.get("status", "unknown"))

    @property
    def measured_bytes(self) -> float | None:
        """The most memory that any progress reported."""
        return max((used for event in self.of("progress") if (used := number(event.get("memory_bytes")))), default=None)

    def of(self, kind: str) -> list[Event]:
        """The events of one kind that count."""
        return [event for event in self.current if event["event"] == kind]


def read(path: Path) -> Run:
    """The run in the directory `path`.

    Raises UsageError where that is no run's directory.
    """
    run = RunDirectory(path)
    marks = (run.plan_file, run.state_file, run.events_file)
    if not any(mark.is_file() for mark in marks):
        raise UsageError(
            f"{path} is no run: it has none of {', '.join(mark.name for mark in marks)}",
            hint="give the directory of a run, one that `shoestring train RECIPE --run DIR` made",
        )
    problems: list[str] = []
    if not run.events_file.is_file():
        problems.append(f"{run.events_file.name} is missing: nothing of what happened can be shown")
    happened = list(record.read(run.events_file))
    return Run(
        path=path,
        plan=_read_object(run.plan_file, problems),
        state=_read_object(run.state_file, problems),
        events=happened,
        current=record.current(happened),
        problems=tuple(problems),
    )


def _read_object(path: Path, problems: list[str]) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        problems.append(f"{path.name} is missing")
        return {}
    except ValueError as error:
        problems.append(f"{path.name} cannot be read: {error}")
        return {}
    if not isinstance(value, dict):
        problems.append(f"{path.name} is no JSON object")
        return {}
    return value
