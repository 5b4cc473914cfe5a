"""A disk is known by writing to it: what the system claims may be the host's, a quota's before it is used up, or a
read-only mount's."""

import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

from shoestring.check.facts import Disk
from shoestring.checkpoint.files import directory_bytes
from shoestring.units import MIB

ASKED = 64 * MIB
_PIECE = 8 * MIB


def write(run: Path, asked: int = ASKED) -> Disk:
    """Write `asked` bytes where the run would be, wait for the disk, and remove them again."""
    folder = _existing(run)
    place = folder / f".check-{os.getpid()}"  # a run's directory may hold what begins with a dot
    written, error, offset, free = 0, "", None, 0
    # Of zeros some file systems store nothing.
    piece = os.urandom(_PIECE)
    began = time.perf_counter()
    try:
        free = shutil.disk_usage(folder).free
        descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            while written < asked:
                written += os.write(descriptor, piece[: asked - written])
            os.fsync(descriptor)
            offset = os.fstat(descriptor).st_mtime - time.time()
        finally:
            os.close(descriptor)
            with suppress(OSError):
                place.unlink()
    except OSError as failure:
        error = failure.strerror or str(failure)
    return Disk(
        folder=folder,
        asked_bytes=asked,
        written_bytes=written,
        seconds=time.perf_counter() - began,
        free_bytes=free,
        used_bytes=directory_bytes(run) if run.is_dir() else 0,
        error=error,
        clock_offset_seconds=offset,
    )


def _existing(run: Path) -> Path:
    """The run's directory, or the nearest above it that is there."""
    run = run.absolute()
    return next(place for place in (run, *run.parents) if place.is_dir())
