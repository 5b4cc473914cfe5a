"""What must not have the names of a run's own files and folders (`contents.py`), and what killed processes leave there.

A run's directory may come from someone else. A symbolic link in it, under a name that Shoestring reads or writes, would
make it read or change a file elsewhere, so no such link is followed. The directory itself may be a link. Files under
other names belong to the user and are left alone.
"""

import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from shoestring.base.errors import UsageError
from shoestring.base.processes import is_running
from shoestring.training.checkpoint.files import remove_own
from shoestring.training.run_directory.contents import (
    FAILED,
    LEFTOVER,
    OWN,
    OWN_BELOW,
    REPORT_LEFTOVER,
    RESTORING,
    TRAINER,
)


def refuse_links(run: Path) -> None:
    """Raise UsageError if a file of the run's directory that is Shoestring's own is a link or a special file.

    A directory that does not exist or is not readable has none.
    """
    for path in _own_entries(run, (OWN,)):
        status = path.lstat()
        if stat.S_ISLNK(status.st_mode):
            raise UsageError(
                f"{path} is a symbolic link to {path.readlink()}; links in a run's directory are not followed, because "
                "a run from someone else could read or change your files through them",
                hint=f"remove the link, or replace it by a copy of its target; {run} itself may be a link",
            )
        if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
            raise UsageError(
                f"{path} is neither a file nor a directory, so it is not of a run", hint=f"remove it: rm {path}"
            )


def remove_leftovers(run: Path) -> None:
    """Remove the temporary files of killed processes. The caller holds the lock of the run's directory.

    Those among checkpoints and weights are removed when a session sets these up.
    """
    for folder in (run, run / FAILED.name):
        for path in _entries(folder):
            is_report = REPORT_LEFTOVER.fullmatch(path.name) and not is_running(int(path.name.rpartition(".")[2]))
            if (is_report or LEFTOVER.fullmatch(path.name)) and path.is_file() and not path.is_symlink():
                remove_own(path, REPORT_LEFTOVER if is_report else LEFTOVER)
    for entry in (TRAINER, RESTORING):
        remove_own(run / entry.name, OWN)


def _own_entries(folder: Path, names: Iterable[re.Pattern[str]]) -> Iterator[Path]:
    """Yield the entries below `folder` with these names, without following links."""
    for path in _entries(folder):
        if any(pattern.fullmatch(path.name) for pattern in names):
            yield path
            if path.is_dir() and not path.is_symlink():
                yield from _own_entries(path, OWN_BELOW)


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []
