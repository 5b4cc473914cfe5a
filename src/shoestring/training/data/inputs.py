"""Staging a recipe's inputs: every option that is a path is copied to the local disk, within a budget, before the data
is read.

The location of the inputs does not affect training, so one session may read the copies and another one the sources.
"""

import hashlib
import os
import stat
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from shoestring.base.errors import ShoestringError, UsageError
from shoestring.base.reading import real_path
from shoestring.base.units import bytes_text, parse_bytes, seconds_text
from shoestring.recipe.options import LoadedRecipe
from shoestring.training.checkpoint.files import directory_bytes
from shoestring.training.data.staging import stage
from shoestring.training.run_directory.lock import locked

_SHARE = 0.5  # of the disk; the other half is for checkpoints and everything else


def stage_inputs(
    loaded: LoadedRecipe, setting: str, *, disk_bytes: int | None, report: Callable[[str], None]
) -> tuple[LoadedRecipe, list[str]]:
    """Return `loaded` with the staged copies of its inputs as options, and a note on each input.

    `setting` is the value of the setting `stage`, `disk_bytes` the platform's limit or None. An input that does not fit
    or cannot be copied is read from its source: that costs time, not the run.
    """
    if setting == "no":
        return loaded, []
    if not loaded.paths:
        return loaded, [f"stage={setting}: none of the recipe's options is a path, so nothing was staged"]
    copies, notes = {}, []
    for name, source in loaded.paths.items():
        try:
            copies[name], note = _stage_input(name, source, setting, disk_bytes, report)
        except (ShoestringError, OSError) as error:
            reason = error.message if isinstance(error, ShoestringError) else str(error)
            note = f"{name} is not staged and is read from its source {source}: {reason}"
        notes.append(note)
    return loaded.replace(**copies), notes


def _stage_input(
    name: str, source: Path, setting: str, disk_bytes: int | None, report: Callable[[str], None]
) -> tuple[Path, str]:
    """Return the verified copy of one input, and a note on it."""
    root = _root_folder()
    # Named by the path of the source, since two inputs may have the same name.
    folder = root / hashlib.sha256(os.fsencode(real_path(source))).hexdigest()[:16]
    folder.mkdir(exist_ok=True)
    other_bytes = directory_bytes(root) - directory_bytes(folder)
    budget = max(0, _budget(setting, root, disk_bytes) - other_bytes)
    started_at, staged_bytes = time.monotonic(), list[int]()
    with locked(folder):
        report(f"staging {name}: copying {source} to the local disk, {folder}")
        copy = stage(
            source, folder / "copy", budget_bytes=budget, progress=lambda copied, _: staged_bytes.append(copied)
        )
    return copy, (
        f"{name} is read from {copy}: {bytes_text(staged_bytes[-1])} of {source}, "
        f"{bytes_text(staged_bytes[-1] - staged_bytes[0])} copied now, "
        f"all of it verified, in {seconds_text(time.monotonic() - started_at)}"
    )


def _budget(setting: str, root: Path, disk_bytes: int | None) -> int:
    """Return how many bytes all staged inputs may take in total."""
    if setting != "yes":
        return parse_bytes(setting)
    if disk_bytes is not None:
        return int(_SHARE * disk_bytes)
    disk = os.statvfs(root)
    return int(_SHARE * (disk.f_bavail * disk.f_frsize + directory_bytes(root)))


def _root_folder() -> Path:
    """Return the folder of this user's staged inputs, in the system's folder for temporary files.

    Raises UsageError if it belongs to another user, who could then replace the training data.
    """
    folder = Path(tempfile.gettempdir()) / f"shoestring-inputs-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise UsageError(
            f"{folder} belongs to another user or is writable by others", hint="set TMPDIR to a folder of your own"
        )
    return folder
