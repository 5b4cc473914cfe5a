"""Slow inputs (a network drive, a mounted bucket) copied to the local disk once, verified, within a budget of bytes."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from shoestring.checkpoint.files import sha256, write_json
from shoestring.errors import DataError, QuestionError
from shoestring.units import bytes_text

Progress = Callable[[int, int], None]
"""(bytes copied or found to be there, bytes in all)."""
_PIECE = 4 * 2**20
_RECORD = "staged.json"


def stage(source: Path, folder: Path, *, budget_bytes: int, progress: Progress = lambda _done, _all: None) -> Path:
    """The file or directory `source` as a copy in `folder`; returns where in it.

    What was staged before and has not changed at its source (size and time) is not copied again; a copy that was cut
    short goes on. Every file is read back and must have the digest of what was read from the source.

    Raises QuestionError where `source` is not there or does not fit into the budget or the free space, DataError
    where what was written is not what was read. A link to a file is copied as that file.
    """
    files = _files(source)
    sizes = {name: path.stat().st_size for name, path in files.items()}
    folder.mkdir(parents=True, exist_ok=True)
    staged = _staged(folder)
    total = sum(sizes.values())
    missing = [name for name, path in files.items() if not _is_there(folder / name, path, staged.get(name))]
    _require_room(source, total, sum(sizes[name] for name in missing), folder, budget_bytes)
    done = total - sum(sizes[name] for name in missing)
    for name in missing:
        stamp = _stamp(files[name])
        staged[name] = [*stamp, _copied(files[name], folder / name, partial(_further, progress, done, total))]
        write_json(folder / _RECORD, staged)
        done += sizes[name]
    progress(done, total)
    return folder / source.name


def _further(progress: Progress, before: int, total: int, piece: int) -> None:
    progress(before + piece, total)


def _stamp(path: Path) -> list[int]:
    found = path.stat()
    return [found.st_size, found.st_mtime_ns]


def _is_there(copy: Path, source: Path, known: object) -> bool:
    """Whether the record knows the source as it is now, and the copy is as large."""
    stamp = _stamp(source)
    if not isinstance(known, list) or known[:2] != stamp or len(known) != 3:
        return False
    return copy.is_file() and copy.stat().st_size == stamp[0]


def _files(source: Path) -> dict[str, Path]:
    """Every file by its name relative to what holds `source`, in order."""
    if source.is_file():
        return {source.name: source}
    if not source.is_dir():
        raise QuestionError(f"there is nothing to stage at {source}")
    return {str(path.relative_to(source.parent)): path for path in sorted(_walk(source))}


def _walk(folder: Path) -> Iterator[Path]:
    for where, folders, names in os.walk(folder):
        linked = [name for name in folders if (Path(where) / name).is_symlink()]
        if linked:
            raise DataError(f"{where} links to other directories: {', '.join(linked)}", hint="stage those one by one")
        yield from (Path(where) / name for name in names)


def _staged(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / _RECORD).read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _require_room(source: Path, total: int, missing: int, folder: Path, budget_bytes: int) -> None:
    disk = os.statvfs(folder)
    free = disk.f_bavail * disk.f_frsize
    for need, have, what in ((total, budget_bytes, "the budget is"), (missing, free, "free are")):
        if need > have:
            raise QuestionError(
                f"{source} takes {bytes_text(need)} on the local disk, {what} {bytes_text(have)}",
                hint="stage a part of it, or read it where it is with more processes (workers=)",
            )


def _copied(source: Path, copy: Path, progress: Callable[[int], None]) -> str:
    """Copy one file by way of a name beside it; returns the SHA-256 of what was read, which the copy has as well."""
    copy.parent.mkdir(parents=True, exist_ok=True)
    draft = copy.with_name(copy.name + ".part")
    digest, done = hashlib.sha256(), 0
    with source.open("rb") as read, draft.open("wb") as written:
        while piece := read.read(_PIECE):
            digest.update(piece)
            written.write(piece)
            done += len(piece)
            progress(done)
        written.flush()
        os.fsync(written.fileno())
    if sha256(draft) != digest.hexdigest():
        draft.unlink()
        raise DataError(f"{copy} is not what was read from {source}", hint="is the local disk failing?")
    draft.replace(copy)
    return digest.hexdigest()
