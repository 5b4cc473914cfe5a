"""A run that comes from elsewhere, into a directory that may have files of the user."""

import os
import re
from pathlib import Path

from shoestring.base.reading import read_json, read_lines
from shoestring.training.checkpoint.files import remove_own, sync
from shoestring.training.run_directory.contents import (
    LOCK,
    OWN,
    PLAN,
    PLANNING,
    RESTORING,
    STATE,
    Command,
    accepted_before_plan,
)
from shoestring.training.run_directory.stored import STATE_KEYS

_TRACE = re.compile(r"[0-9a-f]{64} \{.*", re.DOTALL)
_MAX_BYTES = 1 << 30


def unexpected_names(run: Path, command: Command) -> list[str]:
    """Return what a directory without a plan has that the command does not expect there, and would perhaps replace.

    Hidden names are the user's, or left by a killed process, and stay. Raises OSError.
    """
    accepted = accepted_before_plan(command)
    return sorted(
        path.name
        for path in run.iterdir()
        if not path.name.startswith(".") and (path.name not in accepted or _is_foreign(path))
    )


def move_entries(source: Path, run: Path) -> None:
    """Move the entries of a complete run to their places in a directory; the plan, which makes it a run, is the last.

    Entries of a run there are replaced, and everything else stays. The caller holds the lock. Raises OSError.
    """
    for entry in sorted(source.iterdir(), key=lambda entry: (entry.name == PLAN.name, entry.name)):
        if entry.is_dir():
            remove_own(run / entry.name, OWN)
        entry.replace(run / entry.name)
    sync(run)


class Arrival:
    """The folder for the files of a run on their way into the directory `run`, on the same disk. The caller holds the
    lock. A kill leaves a folder without the file `complete`, which has no effect, or one that `finish` goes on with.
    """

    def __init__(self, run: Path) -> None:
        self._run, self._folder = run, run / RESTORING.name
        self.files = self._folder / "run"
        self._complete = self._folder / "complete"

    @property
    def is_complete(self) -> bool:
        """Whether all files have arrived, so that some may be in their places already."""
        return os.path.lexists(self._complete)

    def begin(self) -> None:
        """Create the folder `files`, empty. Raises OSError."""
        self.discard()
        self.files.mkdir(parents=True)

    def finish(self) -> None:
        """Move all files to their places. Raises OSError."""
        self._complete.touch()
        sync(self._folder)
        if self.files.exists():
            move_entries(self.files, self._run)
        remove_own(self._run / PLANNING.name, OWN)  # of the run that would have begun here
        self.discard()

    def discard(self) -> None:
        """Remove the folder; errors are ignored."""
        remove_own(self._folder, OWN)


def remove_empty(run: Path) -> None:
    """Remove a directory that was created for a run and has nothing but its lock, which the caller holds."""
    if {path.name for path in run.iterdir()} <= {LOCK.name}:
        remove_own(run / LOCK.name, OWN)
        run.rmdir()


def _is_foreign(path: Path) -> bool:
    """Return whether a file that a session leaves before its plan has content that none has written."""
    try:
        if path.name == STATE.name:
            state = read_json(path, paths=True)
            return not isinstance(state, dict) or not {"status"} <= state.keys() <= STATE_KEYS
        if path.name == PLANNING.name:
            line = next(iter(read_lines(path, follow=False, max_bytes=_MAX_BYTES)), None)
            return line is not None and not _TRACE.fullmatch(line.decode(errors="replace"))
    except (OSError, ValueError):
        return False  # damaged, as a disk may leave it
    return False
