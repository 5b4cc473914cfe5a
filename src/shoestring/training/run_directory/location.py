"""Whether a file lies in a run's directory, which may come from someone else."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from shoestring.base.reading import real_path
from shoestring.training.checkpoint.manifest import MANIFEST
from shoestring.training.run_directory.contents import ENTRIES

_MARKS = (*(entry.name for entry in ENTRIES if entry.marks_run), "export.json", "predictions.jsonl", MANIFEST)
"""Each of these names marks a run's directory, or a folder of one: a run need not be complete."""
_MAX_LINKS = 40


def find_run(file: Path, runs: Iterable[Path] = ()) -> Path | None:
    """Return the run's directory in which `file` lies, directly or in a folder below it; None if there is none.

    The `runs` are directories that are runs whatever they contain. A file also lies in a run if only a link on the way
    to it does.

    Raises OSError, also for a chain of too many links.
    """
    directories = {real_path(run) for run in runs}
    for entry in _real_entries(file):
        for folder in entry.parents:
            if folder in directories or any(os.path.lexists(folder / name) for name in _MARKS):
                return folder
    return None


def _real_entries(file: Path) -> Iterator[Path]:
    """Yield the location of each symbolic link on the way to the file, and that of the file, without links in them."""
    folder, links = Path("/"), 0
    pending = list(reversed(file.absolute().parts[1:]))
    while pending:
        name = pending.pop()
        entry = folder.parent if name == ".." else folder / name
        if not entry.is_symlink():
            folder = entry
            continue
        yield entry
        links += 1
        if links > _MAX_LINKS:
            raise OSError(f"{file} leads through more than {_MAX_LINKS} links")
        target = entry.readlink()
        if target.is_absolute():
            folder = Path("/")
        pending += [part for part in reversed(target.parts) if part != target.anchor]
    yield folder
