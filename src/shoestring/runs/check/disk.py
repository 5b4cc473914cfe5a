"""A write test of the disk.

The free space that the operating system reports is not enough: it may be the host's, a quota may be smaller, or the
mount may be read-only.
"""

import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

from shoestring.base.units import MIB
from shoestring.runs.check.facts import Disk
from shoestring.training.checkpoint.files import directory_bytes

TEST_BYTES = 64 * MIB
_CHUNK_BYTES = 8 * MIB


def probe_disk(run: Path, requested_bytes: int = TEST_BYTES) -> Disk:
    """Write and fsync a file of `requested_bytes` where the run's directory would be, and remove it again."""
    folder = _nearest_folder(run)
    file = folder / f".check-{os.getpid()}"  # a run's directory may contain files whose names start with a dot
    written, error, offset, free_bytes = 0, "", None, 0
    # Random bytes: some file systems do not store blocks of zeros.
    chunk = os.urandom(_CHUNK_BYTES)
    start = time.perf_counter()
    try:
        free_bytes = shutil.disk_usage(folder).free
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            while written < requested_bytes:
                written += os.write(descriptor, chunk[: requested_bytes - written])
            os.fsync(descriptor)
            offset = os.fstat(descriptor).st_mtime - time.time()
        finally:
            os.close(descriptor)
            with suppress(OSError):
                file.unlink()
    except OSError as failure:
        error = failure.strerror or str(failure)
    return Disk(
        folder=folder,
        requested_bytes=requested_bytes,
        written_bytes=written,
        seconds=time.perf_counter() - start,
        free_bytes=free_bytes,
        used_bytes=directory_bytes(run) if run.is_dir() else 0,
        error=error,
        clock_offset_seconds=offset,
    )


def _nearest_folder(run: Path) -> Path:
    """Return the run's directory, or its nearest existing parent."""
    run = run.absolute()
    return next(folder for folder in (run, *run.parents) if folder.is_dir())
