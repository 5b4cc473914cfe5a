"""Atomic file operations: a file is written under a temporary name, synced, read back, then renamed.

Every disk operation calls a function of the module `os`, so that tests can make each of them fail in turn.
"""

import errno
import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from shoestring.base.reading import read_blocks

_BLOCK_BYTES = 8 << 20
_DISK_FULL_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""Of write(2): no space, a quota that is used up, a file larger than the process (`ulimit -f`) or the disk allows."""

Buffer = bytes | memoryview


def write_json(path: Path, value: Any) -> None:
    """Replace `path` atomically by `value` as JSON: a reader sees the old file or the new one, also after a kill."""
    replace(path, lambda temporary: write_text(temporary, json_text(value)))


def json_text(value: Any) -> str:
    """Return the text that `write_json` writes."""
    return json.dumps(value, indent=1, allow_nan=False) + "\n"


def with_digest(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON object with the SHA-256 of its content added as `sha256`."""
    return {**value, "sha256": json_digest(value)}


def matches_digest(value: Mapping[str, Any]) -> bool:
    """Return whether a JSON object has the content that `with_digest` added the digest of."""
    return value.get("sha256") == json_digest({key: item for key, item in value.items() if key != "sha256"})


def json_digest(value: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a JSON object, which does not depend on its formatting."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def replace(path: Path, write: Callable[[Path], object]) -> None:
    """Replace `path` atomically by the file that `write` creates at the temporary path passed to it.

    Raises OSError and leaves `path` unchanged if writing fails.
    """
    # In the same folder, because rename(2) is atomic only within a filesystem.
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(temporary)
        temporary.replace(path)
    finally:
        with suppress(OSError):
            temporary.unlink()
    sync(path.parent)


def write_text(path: Path, text: str) -> str:
    """Write `text` to `path` with `write_file`."""
    return write_file(path, [text.encode()])


def write_file(path: Path, chunks: Iterable[Buffer]) -> str:
    """Write `chunks` to `path`, sync the file to the disk, and read it back from there.

    Returns its SHA-256 in hexadecimal. Raises OSError, also if the bytes read differ from the bytes written.
    """
    digest = hashlib.sha256()
    # A pipe under this name is an error (O_NONBLOCK) and does not wait for a reader.
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(path, flags, 0o644)
    try:
        for chunk in chunks:
            for start in range(0, len(chunk), _BLOCK_BYTES):
                block = chunk[start : start + _BLOCK_BYTES]
                digest.update(block)
                _write_all(descriptor, block)
        os.fsync(descriptor)
        # The bytes read back should come from the disk, and the page cache is better used for other data. Only pages
        # that are synced can be dropped (posix_fadvise(2)).
        with suppress(OSError):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
    written = digest.hexdigest()
    if sha256(path) != written:
        raise OSError(errno.EIO, "the bytes read back differ from those written", str(path))
    return written


def sync(path: Path) -> None:
    """Wait until the content of a file, or the entries of a directory, are on the disk.

    After the rename of a file its directory has to be synced as well: fsync(2) of the file does not include its entry.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def close_quietly(descriptor: int) -> None:
    """Close a descriptor that nothing depends on any more; errors, which a network disk may report, are ignored.

    close(2) may return those of earlier writes, for example on NFS when a quota is exceeded.
    """
    with suppress(OSError):
        os.close(descriptor)


def sha256(path: Path, *, follow: bool = False) -> str:
    """Return the SHA-256 of a file's content in hexadecimal. Raises as `reading.open_file` does."""
    digest = hashlib.sha256()
    for block in read_blocks(path, follow=follow):
        digest.update(block)
    return digest.hexdigest()


def is_disk_full(error: OSError) -> bool:
    """Return whether the disk is full, or a quota or a limit on file size is reached."""
    return error.errno in _DISK_FULL_ERRORS


def remove(path: Path) -> None:
    """Remove a file, a link or a directory with its content; errors are ignored."""
    with suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def remove_own(path: Path, names: re.Pattern[str]) -> None:
    """Remove a file, a link or a directory of ours in a run's directory; errors are ignored.

    `names` are those that it may have, of the table of a run's directory (`run_directory/contents.py`): everything else
    there is the user's. Nothing but this function removes what a run's directory has, or `tests/test_removals.py` says
    why. A directory in which another disk is mounted is left alone.
    """
    if not names.fullmatch(path.name):
        raise ValueError(f"{path} has no name of ours, so it is not removed")
    with suppress(OSError):
        if not _has_mount(path):
            remove(path)


def remove_own_renamed(path: Path, renamed: Path, names: re.Pattern[str]) -> None:
    """Remove a directory of ours by way of the name `renamed`: a kill never leaves a part of it under its own name.

    Errors are ignored.
    """
    if not names.fullmatch(path.name):
        raise ValueError(f"{path} has no name of ours, so it is not removed")
    with suppress(OSError):
        path.rename(renamed)
        remove_own(renamed, names)


def _has_mount(path: Path) -> bool:
    """Return whether a directory, or one below it, is on another disk than its parent. Raises OSError."""
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        return False
    device = path.parent.stat().st_dev
    return any(os.lstat(folder).st_dev != device for folder, _, _ in os.walk(path))


def remove_file(path: Path) -> None:
    """Remove a regular file; anything else is left alone, and errors are ignored."""
    with suppress(OSError):
        if stat.S_ISREG(path.lstat().st_mode):
            path.unlink()


def directory_bytes(path: Path) -> int:
    """Return the total size of all files below a directory, skipping files that vanish or are inaccessible."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                total += (Path(folder) / name).lstat().st_size
            except OSError:
                continue
    return total


def _write_all(descriptor: int, block: Buffer) -> None:
    view = memoryview(block)
    while view:
        written = os.write(descriptor, view)
        if not written:
            raise OSError(errno.ENOSPC, "no bytes could be written")
        view = view[written:]
