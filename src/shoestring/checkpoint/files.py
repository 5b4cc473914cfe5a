"""Files that are whole or not there: written beside, synced, read back, then renamed.

Every operation on the disk ends in a function of the module `os`, which is where tests make each of them fail in turn.
"""

import errno
import hashlib
import json
import math
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

_CHUNK = 8 << 20
_LARGEST_JSON = 256 << 20
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

Buffer = bytes | memoryview


def write_json(path: Path, value: Any) -> None:
    """Replace `path` by `value` as JSON, at once: a reader, or a kill, sees the old file or the new one."""
    replace(path, lambda beside: write_text(beside, json.dumps(value, indent=1, allow_nan=False) + "\n"))


def replace(path: Path, write: Callable[[Path], object]) -> None:
    """Replace `path`, at once, by what `write` writes to the path it is given. Raises OSError; `path` is as it was."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(beside)
        beside.replace(path)
    finally:
        with suppress(OSError):
            beside.unlink()
    sync(path.parent)


def write_text(path: Path, text: str) -> str:
    """Write `text` as `write_file` writes."""
    return write_file(path, [text.encode()])


def write_file(path: Path, pieces: Iterable[Buffer]) -> str:
    """Write `pieces` to `path`, wait until they are on the disk, and read them back from there.

    Returns their SHA-256 as hexadecimal digits. Raises OSError, also where other bytes are read than were written.
    """
    digest = hashlib.sha256()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        for piece in pieces:
            for start in range(0, len(piece), _CHUNK):
                chunk = piece[start : start + _CHUNK]
                digest.update(chunk)
                _write_all(descriptor, chunk)
        os.fsync(descriptor)
        # What is read back should come from the disk, and memory is wanted for better things than the file.
        with suppress(OSError):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
    written = digest.hexdigest()
    if sha256(path) != written:
        raise OSError(errno.EIO, "other bytes were read back than were written", str(path))
    return written


def sync(path: Path) -> None:
    """Wait until a file, or the names in a directory, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256(path: Path) -> str:
    """The SHA-256 of a file's bytes, as hexadecimal digits. Raises OSError."""
    digest = hashlib.sha256()
    for chunk in _chunks(path):
        digest.update(chunk)
    return digest.hexdigest()


def read_json(path: Path) -> Any:
    """What `path` holds, taking JSON at its word: one value for a key, finite numbers, no endless nesting.

    Raises OSError, and ValueError saying what is wrong with the text.
    """
    if regular_bytes(path) > _LARGEST_JSON:
        raise ValueError(f"it has more than {_LARGEST_JSON} bytes")
    return parse_json(b"".join(_chunks(path)).decode())


def parse_json(text: str) -> Any:
    """As `read_json`, of a text."""
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=_no_constant, parse_float=_finite)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def regular_bytes(path: Path) -> int:
    """The size of a file that is a file: no link, directory or pipe, which ValueError says. Raises OSError."""
    found = os.lstat(path)
    if not stat.S_ISREG(found.st_mode):
        raise ValueError("it is not a regular file")
    return found.st_size


def is_full(error: OSError) -> bool:
    """Whether a disk, a quota or a limit on a file's size has no room left."""
    return error.errno in _FULL


def remove(path: Path) -> None:
    """Remove a file, a link or a directory with all that is in it, as far as the system lets us."""
    with suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def directory_bytes(path: Path) -> int:
    """Bytes of all files below a directory; files that vanish meanwhile, or cannot be seen, count nothing."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                total += (Path(folder) / name).lstat().st_size
            except OSError:
                continue
    return total


def _write_all(descriptor: int, chunk: Buffer) -> None:
    view = memoryview(chunk)
    while view:
        written = os.write(descriptor, view)
        if not written:
            raise OSError(errno.ENOSPC, "no byte could be written")
        view = view[written:]


def _chunks(path: Path) -> Iterator[bytes]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        while chunk := os.read(descriptor, _CHUNK):
            yield chunk
    finally:
        os.close(descriptor)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("a key stands there twice")
    return value


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is too large a number")
    return value
