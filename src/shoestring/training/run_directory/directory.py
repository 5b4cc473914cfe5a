"""A run's directory: the paths of its files, its plan and state, and its lock. `contents.py` says what each file is."""

import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from shoestring.base.errors import UsageError
from shoestring.base.system_errors import explain
from shoestring.training.checkpoint.identity import RunIdentity
from shoestring.training.run_directory import arriving, contents, one_run, own_files
from shoestring.training.run_directory.lock import locked
from shoestring.training.run_directory.stored import StoredPlan, StoredState

_CREATED: set[Path] = set()
"""Directories that this process has created."""


@dataclass(frozen=True)
class RunDirectory:
    """The paths of a run's files; reads its plan and state."""

    path: Path

    @property
    def plan_file(self) -> Path:
        return self.path / contents.PLAN.name

    @property
    def config_file(self) -> Path:
        return self.path / contents.CONFIG.name

    @property
    def planning_file(self) -> Path:
        return self.path / contents.PLANNING.name

    @property
    def state_file(self) -> Path:
        return self.path / contents.STATE.name

    @property
    def events_file(self) -> Path:
        return self.path / contents.EVENTS.name

    @property
    def ledger_file(self) -> Path:
        return self.path / contents.LEDGER.name

    @property
    def backup_file(self) -> Path:
        return self.path / contents.BACKUP.name

    @property
    def report_file(self) -> Path:
        return self.path / contents.REPORT.name

    @property
    def checkpoints(self) -> Path:
        return self.path / contents.CHECKPOINTS.name

    @property
    def light(self) -> Path:
        return self.path / contents.LIGHT.name

    @property
    def best(self) -> Path:
        return self.path / contents.BEST.name

    @property
    def preprocessing(self) -> Path:
        return self.path / contents.PREPROCESSING.name

    @property
    def logs(self) -> Path:
        return self.path / contents.LOGS.name

    def illustrations(self, part: str, update: int) -> Path:
        """Return the folder for the images of the examples of an evaluation of `part`, validation or test."""
        return self.path / contents.EVIDENCE.name / f"{part}-{update:08d}"

    def failed_update(self, update: int) -> Path:
        """Return the file for the samples of update number `update` (from 1), whose result was not finite."""
        return self.path / contents.FAILED.name / f"update-{update}.json"

    @property
    def traceback_file(self) -> Path:
        """The file for the traceback of the exception that ended the last session that failed."""
        return self.path / contents.FAILED.name / "traceback.txt"

    def create(self) -> None:
        """Create the directory.

        Raises UsageError if the path cannot be used, if it has files but no run, or if one of its own files is a link
        or of another run. Raises RunError if the disk is full or fails.
        """
        self.require_own()
        try:
            if not self.path.exists():
                _CREATED.add(self.path)
            self.path.mkdir(parents=True, exist_ok=True)
            unexpected = arriving.unexpected_names(self.path, "train")
            is_run = self.plan_file.exists()
        except OSError as error:
            raise explain(f"{self.path} cannot be used as a run directory", error) from error
        if unexpected and not is_run:
            raise UsageError(
                f"{self.path} is not empty and contains no run: {', '.join(unexpected[:5])}",
                hint=self._way_on(unexpected),
            )

    def _way_on(self, names: Collection[str]) -> str:
        """Return what to do about a directory that has these files and no plan."""
        if arriving.Arrival(self.path).is_complete:
            return "a copy of a run is being restored here: give the same command again, with --from"
        if contents.CHECKPOINTS.name in names:
            return (
                f"these are files of a run without its {contents.PLAN.name}: put that back, or begin from a copy of "
                "the run in another directory, with --from"
            )
        return "choose an empty or new directory: --run runs/NAME"

    def refuse_links(self) -> None:
        """Raise UsageError if one of the run's own files is a link, before any of them is read or written."""
        own_files.refuse_links(self.path)

    def require_own(self) -> None:
        """Raise UsageError if one of the run's own files is a link, or is of another run."""
        self.refuse_links()
        one_run.require_one_run(self.path)

    def plan(self) -> StoredPlan | None:
        """Return the stored plan; None before the run started. Raises UsageError as `StoredPlan.read` does."""
        return StoredPlan.read(self.plan_file)

    def identity(self) -> RunIdentity | None:
        """Return what the files of the run name it by; None before the run started, and for an earlier version's."""
        stored = self.plan()
        return stored.identity if stored else None

    def state(self) -> StoredState | None:
        """Return the stored state; None before the run started. Raises UsageError as `StoredState.read` does."""
        return StoredState.read(self.state_file)

    @contextmanager
    def trainer_folder(self) -> Iterator[Path]:
        """Return a new folder for the temporary files of a library's trainer. After a kill the next session removes it.

        The caller holds the lock.
        """
        parent = (self.path / contents.TRAINER.name).absolute()
        parent.mkdir(exist_ok=True)
        try:
            with tempfile.TemporaryDirectory(dir=parent) as folder:
                yield Path(folder)
        finally:
            with suppress(OSError):  # it has another folder
                parent.rmdir()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the run for this process, and remove what killed processes have left.

        If an error ends the context before there is a plan, the directory does not remain with nothing but the lock.

        Raises UsageError naming the holder if another process has the lock.
        """
        with locked(self.path):
            own_files.remove_leftovers(self.path)
            try:
                yield
            except BaseException:
                self._remove_if_unused()
                raise

    def _remove_if_unused(self) -> None:
        """Remove the lock, which this process holds, if the directory has nothing else, and a directory that is new."""
        with suppress(OSError):
            if [entry.name for entry in self.path.iterdir()] == [contents.LOCK.name]:
                (self.path / contents.LOCK.name).unlink()
                if self.path in _CREATED:
                    self.path.rmdir()
