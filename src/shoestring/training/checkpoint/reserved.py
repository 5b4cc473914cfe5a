"""A small file that can also be replaced on a full disk, because the space for its replacement is reserved beforehand.

The reserve is a file `.NAME.reserve` beside it. On a full disk the new content is written over the reserve, which needs
neither a block nor an inode, and the reserve is renamed: a reader sees the old file or the new one, as always.
"""

import os
from contextlib import suppress
from pathlib import Path

from shoestring.training.checkpoint.files import replace, sync, write_text

_BLOCK_BYTES = 4096


def reserve(path: Path, size: int) -> None:
    """Reserve space for replacing `path` by a text of `size` bytes. Raises OSError if there is none."""
    reserved, needed = reserve_of(path), -(-max(size, 1) // _BLOCK_BYTES) * _BLOCK_BYTES
    descriptor = os.open(reserved, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        missing = needed - os.fstat(descriptor).st_size
        if missing > 0:
            # Random bytes: a disk that compresses would reserve nothing for zeros.
            written = os.pwrite(descriptor, os.urandom(missing), needed - missing)
            os.fsync(descriptor)
            if written < missing:
                raise OSError("the disk has no space left for its reserve")
    finally:
        os.close(descriptor)


def release(path: Path) -> None:
    """Remove the reserve of `path`; errors are ignored."""
    with suppress(OSError):
        reserve_of(path).unlink()


def replace_text(path: Path, text: str) -> None:
    """Replace `path` atomically by `text`, in its reserved space if it cannot be written elsewhere. Raises OSError."""
    try:
        replace(path, lambda temporary: write_text(temporary, text))
    except OSError as error:
        try:
            _write_over(reserve_of(path), text.encode())
            reserve_of(path).replace(path)
        except OSError:
            raise error from None
        with suppress(OSError):
            sync(path.parent)


def reserve_of(path: Path) -> Path:
    """Return the path of the file whose space is reserved for replacing `path`."""
    return path.with_name(f".{path.name}.reserve")


def _write_over(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        if os.pwrite(descriptor, content, 0) < len(content):
            raise OSError("the reserve is too small")
        os.ftruncate(descriptor, len(content))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
