"""Slow inputs (a network drive, a mounted bucket) copied to the local disk once, verified, within a budget of bytes."""

import json
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from shoestring.checkpoint.files import sha256, write_file, write_json
from shoestring.errors import DataError, UsageError
from shoestring.units import bytes_text

Progress = Callable[[int, int], None]
"""(bytes copied or found to be there, bytes in all)."""
_PIECE = 4 * 2**20
_RECORD_SECONDS = 1.0


def stage(source: Path, folder: Path, *, budget_bytes: int, progress: Progress = lambda _done, _all: None) -> Path:
    """The file or directory `source` as a copy in `folder`, which holds nothing else; returns where in it.

    What was staged before and has not changed, at its source by size and time and here by its digest, is not copied
    again; a copy that was cut short goes on. Every file is read back and must have the digest of what was read from
    the source. `progress` is told before the first copy what is there already.

    Raises UsageError where `source` is not there or does not fit into the budget or the free space, DataError
    where it has links to directories, OSError, also where what was written is not what was read. A link to a file is
    copied as that file.
    """
    files = _files(source)
    sizes = {name: path.stat().st_size for name, path in files.items()}
    folder.mkdir(parents=True, exist_ok=True)
    # Names that nothing of the source can have: its own lie below its name.
    record, draft = folder / f"{source.name}.staged.json", folder / f"{source.name}.part"
    staged = _staged(record)
    total = sum(sizes.values())
    missing = [name for name, path in files.items() if not _is_there(folder / name, path, staged.get(name))]
    _require_room(source, total, sum(sizes[name] for name in missing), folder, budget_bytes)
    done = total - sum(sizes[name] for name in missing)
    progress(done, total)
    _remove_others(folder / source.name, {folder / name for name in files})
    written = time.monotonic()
    try:
        for name in missing:
            stamp, further = _stamp(files[name]), partial(_further, progress, done, total)
            staged[name] = [*stamp, _copied(files[name], draft, folder / name, further)]
            done += sizes[name]
            # What a kill takes from the record is copied again. Writing it for each of many small files takes longer.
            if time.monotonic() - written > _RECORD_SECONDS:
                write_json(record, staged)
                written = time.monotonic()
    finally:
        write_json(record, staged)
    return folder / source.name


def _remove_others(copy: Path, files: set[Path]) -> None:
    """What is no longer at the source: a recipe that looks what there is would train on it."""
    for path in _walk(copy):
        if path not in files:
            path.unlink()


def _further(progress: Progress, before: int, total: int, piece: int) -> None:
    progress(before + piece, total)


def _stamp(path: Path) -> list[int]:
    found = path.stat()
    return [found.st_size, found.st_mtime_ns]


def _is_there(copy: Path, source: Path, known: object) -> bool:
    """Whether the record knows the source as it is now, and the copy is what was copied then."""
    stamp = _stamp(source)
    if not isinstance(known, list) or known[:2] != stamp or len(known) != 3:
        return False
    return copy.is_file() and copy.stat().st_size == stamp[0] and sha256(copy) == known[2]


def _files(source: Path) -> dict[str, Path]:
    """Every file by its name relative to what holds `source`, in order."""
    if source.is_file():
        return {source.name: source}
    if not source.is_dir():
        raise UsageError(f"there is nothing to stage at {source}")
    return {str(path.relative_to(source.parent)): path for path in sorted(_walk(source))}


def _walk(folder: Path) -> Iterator[Path]:
    for where, folders, names in os.walk(folder):
        linked = [name for name in folders if (Path(where) / name).is_symlink()]
        if linked:
            raise DataError(f"{where} links to other directories: {', '.join(linked)}", hint="stage those one by one")
        yield from (Path(where) / name for name in names)


def _staged(record: Path) -> dict[str, Any]:
    try:
        found = json.loads(record.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _require_room(source: Path, total: int, missing: int, folder: Path, budget_bytes: int) -> None:
    disk = os.statvfs(folder)
    free = disk.f_bavail * disk.f_frsize
    for need, have, what in ((total, budget_bytes, "the budget is"), (missing, free, "free are")):
        if need > have:
            raise UsageError(
                f"{source} takes {bytes_text(need)} on the local disk, {what} {bytes_text(have)}",
                hint="stage a part of it, or read it where it lies with more processes (workers=)",
            )


def _copied(source: Path, draft: Path, copy: Path, progress: Callable[[int], None]) -> str:
    """Copy one file by way of `draft`; returns the SHA-256 of what was read, which the copy has as well."""
    copy.parent.mkdir(parents=True, exist_ok=True)
    try:
        digest = write_file(draft, _pieces(source, progress))
        draft.replace(copy)
    finally:
        draft.unlink(missing_ok=True)
    return digest


def _pieces(source: Path, progress: Callable[[int], None]) -> Iterator[bytes]:
    done = 0
    with source.open("rb") as read:
        while piece := read.read(_PIECE):
            yield piece
            done += len(piece)
            progress(done)
