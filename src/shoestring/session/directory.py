"""A run's directory: what was decided, how far it is, and who is at it.

plan.json      what was decided when the run began
state.json     running | paused | finished | failed, the update reached, what to do next
checkpoints/   full checkpoints          light/ best/   weights to use
events.jsonl   what happened             report.html
ledger.json    what each session took, got done and ended by
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shoestring.checkpoint.files import write_json
from shoestring.errors import QuestionError
from shoestring.session.lock import locked


class RunDirectory:
    """The paths of a run and its two small JSON files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.plan_file = path / "plan.json"
        self.state_file = path / "state.json"
        self.events_file = path / "events.jsonl"
        self.ledger_file = path / "ledger.json"
        self.checkpoints = path / "checkpoints"
        self.light = path / "light"
        self.best = path / "best"

    def create(self) -> None:
        """Make the directory.

        Raises QuestionError when it cannot be made or holds something that is no run.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            # What begins with a dot was being written when an earlier attempt was killed.
            names = [entry.name for entry in self.path.iterdir()]
            strange = [name for name in names if name != "lock" and not name.startswith(".")]
        except OSError as error:
            raise QuestionError(f"{self.path} cannot hold a run: {error}") from error
        if strange and not self.plan_file.exists():
            raise QuestionError(
                f"{self.path} is not empty and holds no run: {', '.join(sorted(strange)[:5])}",
                hint="give a directory of its own: --run runs/NAME",
            )

    def plan(self) -> dict[str, Any] | None:
        """What was decided when the run began; None before that.

        Raises QuestionError when the file cannot be read.
        """
        return _read(self.plan_file)

    def state(self) -> dict[str, Any] | None:
        """How far the run is; None before it started.

        Raises QuestionError when the file cannot be read.
        """
        return _read(self.state_file)

    def write_plan(self, plan: dict[str, Any]) -> None:
        write_json(self.plan_file, plan)

    def write_state(self, state: dict[str, Any]) -> None:
        write_json(self.state_file, state)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the run for this process.

        Raises QuestionError, naming the holder, when another process is at it.
        """
        with locked(self.path):
            yield


def _read(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise QuestionError(f"{path} cannot be read: {error}", hint="copy the run again from where it came") from error
    if not isinstance(value, dict):
        raise QuestionError(f"{path} holds no JSON object", hint="copy the run again from where it came")
    return value
