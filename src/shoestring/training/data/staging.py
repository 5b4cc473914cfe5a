"""Copying slow inputs (a network drive, a mounted bucket) to the local disk once, verified, within a budget."""

import glob
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from shoestring.base.errors import DataError, UsageError
from shoestring.base.reading import open_binary, read_json
from shoestring.base.units import bytes_text
from shoestring.training.checkpoint.files import remove_file, sha256, write_file, write_json

Progress = Callable[[int, int], None]
"""(bytes that are staged already, total bytes)."""
_PIECE_BYTES = 4 * 2**20
_RECORD_SECONDS = 1.0


def stage(
    source: str | Path, folder: str | Path, *, budget_bytes: int, progress: Progress = lambda _staged, _total: None
) -> Path:
    """Copy the file or directory `source` into `folder`, which has no other content, and return the path of the copy.

    A file that was staged before is not copied again if neither the source (by size and modification time) nor the copy
    (by digest) has changed; an interrupted copy is continued. Every file is read back and must have the digest of its
    source. `progress` is also called before the first copy, with the bytes that are already staged. A link to a file is
    copied as that file.

    Raises UsageError if `source` does not exist or does not fit into the budget or the free space, DataError if it
    contains links to directories, and OSError, also if the written bytes differ from those that were read.
    """
    source, folder = Path(source), Path(folder)
    files = _files(source)
    sizes = {name: path.stat().st_size for name, path in files.items()}
    folder.mkdir(parents=True, exist_ok=True)
    # These names cannot collide with files of the source, which are below its name.
    record, draft = folder / f"{source.name}.staged.json", folder / f"{source.name}.part"
    for leftover in folder.glob(f".{glob.escape(record.name)}.*"):  # of a killed process that wrote the record
        if leftover.name.rpartition(".")[2].isdecimal():
            remove_file(leftover)
    staged = _read_record(record)
    total = sum(sizes.values())
    missing = [name for name, path in files.items() if not _is_staged(folder / name, path, staged.get(name))]
    _require_space(source, total, sum(sizes[name] for name in missing), folder, budget_bytes)
    staged_bytes = total - sum(sizes[name] for name in missing)
    progress(staged_bytes, total)
    _remove_stale_files(folder / source.name, {folder / name for name in files})
    written_at = time.monotonic()
    try:
        for name in missing:
            stamp, file_progress = _stamp(files[name]), partial(_report, progress, staged_bytes, total)
            staged[name] = [*stamp, _copy(files[name], draft, folder / name, file_progress)]
            staged_bytes += sizes[name]
            # Files that a kill removes from the record are copied again; writing it after each small file would take
            # longer.
            if time.monotonic() - written_at > _RECORD_SECONDS:
                write_json(record, staged)
                written_at = time.monotonic()
    finally:
        write_json(record, staged)
    return folder / source.name


def _remove_stale_files(copy: Path, files: set[Path]) -> None:
    """Remove files that no longer exist at the source: a recipe that lists the folder would train on them."""
    for path in _walk(copy):
        if path not in files:
            path.unlink()


def _report(progress: Progress, staged_before: int, total: int, file_bytes: int) -> None:
    progress(staged_before + file_bytes, total)


def _stamp(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]


def _is_staged(copy: Path, source: Path, entry: object) -> bool:
    """Return whether neither the source nor the copy has changed since the record's `entry` was written."""
    stamp = _stamp(source)
    if not isinstance(entry, list) or entry[:2] != stamp or len(entry) != 3:
        return False
    is_file = copy.is_file() and not copy.is_symlink()
    return is_file and copy.stat().st_size == stamp[0] and sha256(copy) == entry[2]


def _files(source: Path) -> dict[str, Path]:
    """Return every file by its path relative to the parent of `source`, sorted."""
    if source.is_file():
        return {source.name: source}
    if not source.is_dir():
        raise UsageError(f"there is nothing to stage at {source}")
    return {str(path.relative_to(source.parent)): path for path in sorted(_walk(source))}


def _walk(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        links = [name for name in folders if (Path(parent) / name).is_symlink()]
        if links:
            raise DataError(f"{parent} links to other directories: {', '.join(links)}", hint="stage those one by one")
        yield from (Path(parent) / name for name in names)


def _read_record(record: Path) -> dict[str, Any]:
    try:
        entries = read_json(record, paths=True)
    except (OSError, ValueError):
        return {}
    return entries if isinstance(entries, dict) else {}


def _require_space(source: Path, total: int, missing: int, folder: Path, budget_bytes: int) -> None:
    disk = os.statvfs(folder)
    free_bytes = disk.f_bavail * disk.f_frsize
    limits = ((total, budget_bytes, "the budget is"), (missing, free_bytes, "the free space is"))
    for needed, available, limit in limits:
        if needed > available:
            raise UsageError(
                f"{source} needs {bytes_text(needed)} on the local disk, but {limit} {bytes_text(available)}",
                hint="stage a part of it, or read it from its source with more worker processes (workers=)",
            )


def _copy(source: Path, draft: Path, copy: Path, progress: Callable[[int], None]) -> str:
    """Copy one file, by way of `draft`, and return its SHA-256, which the copy has as well."""
    copy.parent.mkdir(parents=True, exist_ok=True)
    try:
        digest = write_file(draft, _pieces(source, progress))
        draft.replace(copy)
    except ValueError as error:
        raise DataError(f"{source} cannot be copied: {error}") from error
    finally:
        draft.unlink(missing_ok=True)
    return digest


def _pieces(source: Path, progress: Callable[[int], None]) -> Iterator[bytes]:
    file_bytes = 0
    with open_binary(source, max_bytes=None) as file:
        while piece := file.read(_PIECE_BYTES):
            yield piece
            file_bytes += len(piece)
            progress(file_bytes)
