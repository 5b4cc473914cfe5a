"""Files that an earlier session or a dataset brings: read and copied without trusting them."""

import contextlib
import hashlib
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MIB = 2**20


def regular_files(folder: Path) -> Iterator[Path]:
    """Yield the regular files below a folder; links are not followed, pipes and devices are left out."""
    for parent, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = Path(parent, name)
            with contextlib.suppress(OSError):
                if stat.S_ISREG(path.lstat().st_mode):
                    yield path


def read_json(path: Path, max_bytes: int = 64 * MIB) -> dict[str, Any]:
    """Return the content of a JSON file. Raises OSError, and ValueError for a file that is not one."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > max_bytes:
            raise ValueError(f"{path.name} is not a file of at most {max_bytes} bytes")
        try:
            value = json.loads(file.read())
        except RecursionError:
            raise ValueError(f"{path.name} is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path.name} is not a JSON object")
    return value


def digest(path: Path, target: Path | None = None) -> tuple[int, str]:
    """Return the size and the SHA-256 of a file, and copy it to `target` on the way."""
    sha256, size = hashlib.sha256(), 0
    with contextlib.ExitStack() as files:
        source = files.enter_context(os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb"))
        copy = files.enter_context(target.open("wb")) if target else None
        while block := source.read(8 * MIB):
            sha256.update(block)
            size += len(block)
            if copy:
                copy.write(block)
    return size, sha256.hexdigest()


def shorten(path: Path, size: int) -> None:
    """Keep the last `size` bytes of a file."""
    with path.open("rb") as file:
        length = file.seek(0, os.SEEK_END)
        if length <= size:
            return
        file.seek(length - size)
        end = file.read()
    path.write_bytes(end)
