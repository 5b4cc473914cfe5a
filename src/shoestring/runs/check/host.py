"""This machine's cores, memory, folders and clocks, within the limits of this process."""

import os
import shutil
import tempfile
import time
from pathlib import Path

from shoestring.hardware import probe
from shoestring.runs.check.facts import Clock, Host

VARIABLES = (
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_TF32_OVERRIDE",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "HF_HUB_OFFLINE",
)


def inspect_host(shm: Path = Path("/dev/shm")) -> Host:
    """Return the facts of this machine outside of the GPU."""
    ram = probe.ram_bytes()
    temporary, free_bytes = _temporary_folder()
    return Host(
        cores=probe.cores(),
        visible_cores=os.cpu_count() or 1,
        ram_bytes=ram,
        ram_free_bytes=min(ram, probe.ram_free_bytes()),
        shm_bytes=shutil.disk_usage(shm).free if shm.is_dir() else None,
        temporary=temporary,
        temporary_free_bytes=free_bytes,
        environment={name: os.environ[name] for name in VARIABLES if name in os.environ},
    )


def _temporary_folder() -> tuple[Path, int]:
    """Return the folder of temporary files and its free bytes: 0 if Python finds no writable folder."""
    try:
        folder = Path(tempfile.gettempdir())
        return folder, shutil.disk_usage(folder).free
    except OSError:
        return Path(os.environ.get("TMPDIR", "/tmp")), 0


def read_clock() -> Clock:
    """Read the wall clock and check that the monotonic clock does not go backwards."""
    earlier = time.monotonic()
    unix_seconds = time.time()
    return Clock(unix_seconds=unix_seconds, monotonic=time.monotonic() >= earlier)
