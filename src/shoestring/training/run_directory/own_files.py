"""The files of a run's directory that are Shoestring's own: their names, and what must not have these names.

A run's directory may come from someone else. A symbolic link in it, under a name that Shoestring reads or writes, would
make it read or change a file elsewhere, so no such link is followed. The directory itself may be a link. Files under
other names belong to the user and are left alone.
"""

import re
import shutil
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from shoestring.base.errors import UsageError
from shoestring.base.processes import is_running
from shoestring.training.checkpoint.files import remove_file
from shoestring.training.checkpoint.manifest import FILE, MANIFEST, STAGED_FILE

TRAINER_FOLDER = ".trainer"
"""The folder for temporary files of a library's trainer."""

_REPLACED = (
    r"plan\.json|state\.json|ledger\.json|backup\.json|events\.jsonl|run\.toml|\.lock"
    rf"|{re.escape(MANIFEST)}|update-[0-9]+\.json"
)
"""Files that are written under a temporary name, with the id of the process, and then renamed."""
_FOLDERS = (
    r"checkpoints|light|best|failed|logs|tensorboard|csv|export|\.?preprocessing|\.trainer|update-[0-9]{8,18}"
    r"|kaggle|evidence|(?:validation|test)-[0-9]{8,18}"
)
_TEMPORARY_FOLDERS = r"\.writing-[0-9]{8,18}-[0-9]+|\.(?:removed|replaced)-[0-9]{8,18}"
_LEFTOVER = re.compile(rf"\.(?:{_REPLACED})\.[0-9]+|report\.html\.part|\.shared-[0-9a-f]{{32}}")
_REPORT_LEFTOVER = re.compile(r"\.report\.html\.(?P<pid>[0-9]+)")
_OWN = (_LEFTOVER, _REPORT_LEFTOVER, re.compile(rf"{_REPLACED}|lock|report\.html|{_FOLDERS}|{_TEMPORARY_FOLDERS}"))
IMAGE_NAME = re.compile(r"[0-9]{1,18}-[0-9]{1,3}\.(?:png|jpg)")
"""An image of an example of an evaluation."""
_OF_KAGGLE = re.compile(r"chain\.json|\.chain\.json\.[0-9]+|session-[0-9]+\.json|shoestring\.log|stop|run|incoming")
"""Entries of the folder `kaggle`, and the folders of outputs that are downloaded there."""
_OWN_BELOW = (*_OWN, STAGED_FILE, re.compile(FILE), IMAGE_NAME, _OF_KAGGLE)
"""The names in the folders of the run's directory."""


def refuse_links(run: Path) -> None:
    """Raise UsageError if a file of the run's directory that is Shoestring's own is a link or a special file.

    A directory that does not exist or is not readable has none.
    """
    for path in _own_entries(run, _OWN):
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
    for folder in (run, run / "failed"):
        for path in _entries(folder):
            report = _REPORT_LEFTOVER.fullmatch(path.name)
            # A report is written without the lock, so its writer may be alive.
            if _LEFTOVER.fullmatch(path.name) or (report and not is_running(int(report["pid"]))):
                remove_file(path)
    shutil.rmtree(run / TRAINER_FOLDER, ignore_errors=True)  # does not follow links


def _own_entries(folder: Path, names: Iterable[re.Pattern[str]]) -> Iterator[Path]:
    """Yield the entries below `folder` with these names, without following links."""
    for path in _entries(folder):
        if any(pattern.fullmatch(path.name) for pattern in names):
            yield path
            if path.is_dir() and not path.is_symlink():
                yield from _own_entries(path, _OWN_BELOW)


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []
