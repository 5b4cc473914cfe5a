"""The files in which a session is recorded besides its events: state.json, ledger.json, and the traceback of a failure.

Of several processes that train together one writes them, and only while the run's directory is still the one that the
session began in: a directory that was deleted is not created again.
"""

import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from shoestring.base import shell
from shoestring.base.errors import ShoestringError
from shoestring.base.system_errors import reason as describe
from shoestring.recipe.options import LoadedRecipe
from shoestring.training.checkpoint.files import write_json
from shoestring.training.checkpoint.presence import Presence
from shoestring.training.checkpoint.reserved import release
from shoestring.training.run_directory.directory import RunDirectory
from shoestring.training.run_directory.stored import StoredState, resume_command
from shoestring.training.session.ledger import SessionRecord, ledger


class RecordFiles:
    """The files of one session's record. `loaded` is None in a script with a trainer of its own."""

    def __init__(
        self, run: RunDirectory, loaded: LoadedRecipe | None, *, target: str, folds: int, is_writer: bool
    ) -> None:
        """Raises OSError if the run's directory cannot be opened."""
        self._run, self._loaded, self._target, self._folds, self._is_writer = run, loaded, target, folds, is_writer
        self._presence = Presence(run.path)

    def state(
        self, status: str, reason: str, *, update: int, total_updates: int, metrics: dict[str, Any], test_weights: str
    ) -> StoredState:
        """Return the content of state.json, with the command to type next."""
        return StoredState(
            status=status,
            update=update,
            total_updates=total_updates,
            reason=reason,
            next=f"shoestring report {shell.quote(self._run.path)}" if status == "finished" else self._resume_command(),
            metrics=metrics,
            test_weights=test_weights,
        )

    def write_running(self, state: StoredState) -> None:
        """Write state.json of a running session, if its end can then be written as well, even on a full disk.

        Otherwise the previous state.json remains: the checkpoint matters more.
        """
        if self._is_writer and not self._presence.is_lost():
            with suppress(OSError):
                state.write_running(self._run.state_file)

    def write_end(self, state: StoredState) -> str:
        """Write the last state.json of the session. Returns why that failed; empty if it did not."""
        file = self._run.state_file
        if not self._is_writer:
            return ""
        if self._presence.is_lost():
            return f"{file} could not be written: {self._run.path} is gone"
        try:
            state.write_end(file)
        except OSError as error:
            return f"{file} could not be written: {describe(error)}"
        release(file)
        return ""

    def write_ledger(self, records: Callable[[], Sequence[SessionRecord]]) -> None:
        """Write the ledger of the sessions that `records` returns. Raises its errors, and OSError."""
        if self._is_writer and not self._presence.is_lost():
            write_json(self._run.ledger_file, ledger(records()))

    def write_traceback(self, error: BaseException) -> None:
        """Write the traceback of an exception of the recipe's code, or of a defect, and name the file in a note."""
        if isinstance(error, ShoestringError) and not isinstance(error.__cause__, SystemExit):
            return
        if not self._is_writer:
            return
        file = self._run.traceback_file
        with suppress(OSError):
            file.parent.mkdir(exist_ok=True)
            file.write_text("".join(traceback.format_exception(error)), encoding="utf-8", errors="backslashreplace")
            error.add_note(f"the whole traceback is in {file}")

    def close(self) -> None:
        """Stop watching the run's directory."""
        self._presence.close()

    def _resume_command(self) -> str:
        """Return the command that continues the run."""
        if self._loaded is None:
            return f"run the script that started {self._run.path} again"
        recipe = self._loaded.reference or self._loaded.name
        return resume_command(recipe, self._run.path, self._target, folds=self._folds)
