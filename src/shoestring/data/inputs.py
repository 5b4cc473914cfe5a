"""A recipe's inputs on the local disk: every option that is a path is staged, within a budget, before the data is read.

Where they lie is no part of what is learnt, so a run may read them here today and at their source tomorrow.
"""

import hashlib
import os
import stat
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from shoestring.checkpoint.files import directory_bytes
from shoestring.data.staging import stage
from shoestring.errors import ShoestringError, UsageError
from shoestring.recipe.options import LoadedRecipe
from shoestring.session.lock import locked
from shoestring.units import bytes_text, parse_bytes, seconds_text

_SHARE = 0.5  # of the disk: the other half is for checkpoints and for what else there is


def staged(
    loaded: LoadedRecipe, wanted: str, *, disk_bytes: int | None, say: Callable[[str], None]
) -> tuple[LoadedRecipe, list[str]]:
    """`loaded` reading its inputs from the local disk, and what to tell of each; `wanted` is the setting `stage`.

    `disk_bytes` is the platform's limit, None without one. What finds no place, or cannot be copied, is read where it
    lies: that costs time, not the run.
    """
    if wanted == "no":
        return loaded, []
    if not loaded.paths:
        return loaded, [f"stage={wanted}: none of the recipe's options is a path, so nothing was staged"]
    copies, told = {}, []
    for name, source in loaded.paths.items():
        try:
            copies[name], said = _copied(name, source, wanted, disk_bytes, say)
        except (ShoestringError, OSError) as error:
            why = error.message if isinstance(error, ShoestringError) else str(error)
            said = f"{name} is read where it lies, {source}: {why}"
        told.append(said)
    return loaded.replace(**copies), told


def _copied(
    name: str, source: Path, wanted: str, disk_bytes: int | None, say: Callable[[str], None]
) -> tuple[Path, str]:
    """The verified copy of one input, and what to tell of it."""
    root = _folder()
    # By where it lies: two inputs may have one name.
    folder = root / hashlib.sha256(str(source.resolve()).encode()).hexdigest()[:16]
    folder.mkdir(exist_ok=True)
    others = directory_bytes(root) - directory_bytes(folder)
    budget = max(0, _budget(wanted, root, disk_bytes) - others)
    began, seen = time.monotonic(), list[int]()
    with locked(folder):
        say(f"staging {name}: {source} on the local disk, in {folder}")
        copy = stage(source, folder / "copy", budget_bytes=budget, progress=lambda done, _: seen.append(done))
    return copy, (
        f"{name} is read from {copy}: {bytes_text(seen[-1])} of {source}, {bytes_text(seen[-1] - seen[0])} copied now, "
        f"all of it verified, in {seconds_text(time.monotonic() - began)}"
    )


def _budget(wanted: str, root: Path, disk_bytes: int | None) -> int:
    """Bytes that all staged inputs together may take."""
    if wanted != "yes":
        return parse_bytes(wanted)
    if disk_bytes is not None:
        return int(_SHARE * disk_bytes)
    disk = os.statvfs(root)
    return int(_SHARE * (disk.f_bavail * disk.f_frsize + directory_bytes(root)))


def _folder() -> Path:
    """The folder of this user's staged inputs, below the system's folder for what may be lost.

    Raises UsageError where it is somebody else's: what is trained on would be theirs to choose.
    """
    folder = Path(tempfile.gettempdir()) / f"shoestring-inputs-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise UsageError(f"{folder} belongs to somebody else", hint="set TMPDIR to a folder of your own")
    return folder
