"""A run's directory: what was decided, how far it is, and who is at it.

plan.json      what was decided when the run began
state.json     running | paused | finished | failed, the update reached, what to do next
checkpoints/   full checkpoints          light/ best/   weights to use
events.jsonl   what happened             report.html
ledger.json    what each session took, got done and ended by
failed/        the samples of an update that left numbers that are not finite
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from shoestring.errors import UsageError
from shoestring.session.lock import locked
from shoestring.session.stored import StoredPlan, StoredState


@dataclass(frozen=True)
class RunDirectory:
    """The paths of a run, and its two small JSON files."""

    path: Path

    @property
    def plan_file(self) -> Path:
        return self.path / "plan.json"

    @property
    def state_file(self) -> Path:
        return self.path / "state.json"

    @property
    def events_file(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def ledger_file(self) -> Path:
        return self.path / "ledger.json"

    @property
    def report_file(self) -> Path:
        return self.path / "report.html"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def light(self) -> Path:
        return self.path / "light"

    @property
    def best(self) -> Path:
        return self.path / "best"

    def failed_update(self, update: int) -> Path:
        """The samples of update number `update` (from 1), which left numbers that are not finite."""
        return self.path / "failed" / f"update-{update}.json"

    def create(self) -> None:
        """Make the directory.

        Raises UsageError when it cannot be made or holds something that is no run.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            # What begins with a dot was being written when an earlier attempt was killed.
            names = [entry.name for entry in self.path.iterdir()]
            strange = [name for name in names if name != "lock" and not name.startswith(".")]
        except OSError as error:
            raise UsageError(f"{self.path} cannot hold a run: {error}") from error
        if strange and not self.plan_file.exists():
            raise UsageError(
                f"{self.path} is not empty and holds no run: {', '.join(sorted(strange)[:5])}",
                hint="give a directory of its own: --run runs/NAME",
            )

    def plan(self) -> StoredPlan | None:
        """What was decided when the run began; None before that. Raises UsageError as `StoredPlan.read`."""
        return StoredPlan.read(self.plan_file)

    def state(self) -> StoredState | None:
        """How far the run is; None before it started. Raises UsageError as `StoredState.read`."""
        return StoredState.read(self.state_file)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the run for this process.

        Raises UsageError, naming the holder, when another process is at it.
        """
        with locked(self.path):
            yield
