"""This machine's cores, memory and places, as this process may use them."""

import os
import shutil
import tempfile
import time
from pathlib import Path

from shoestring.check.facts import Clock, Host
from shoestring.hardware import probe

VARIABLES = (
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_TF32_OVERRIDE",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "HF_HUB_OFFLINE",
)


def look(shm: Path = Path("/dev/shm")) -> Host:
    ram = probe.ram_bytes()
    temporary, free = _temporary()
    return Host(
        cores=probe.cores(),
        cores_seen=os.cpu_count() or 1,
        ram_bytes=ram,
        ram_free_bytes=min(ram, probe.ram_free_bytes()),
        shm_bytes=shutil.disk_usage(shm).free if shm.is_dir() else None,
        temporary=temporary,
        temporary_free_bytes=free,
        environment={name: os.environ[name] for name in VARIABLES if name in os.environ},
    )


def _temporary() -> tuple[Path, int]:
    """Where temporary files go, and what is free there: nothing where Python finds no place that it can write to."""
    try:
        place = Path(tempfile.gettempdir())
        return place, shutil.disk_usage(place).free
    except OSError:
        return Path(os.environ.get("TMPDIR", "/tmp")), 0


def clock() -> Clock:
    earlier = time.monotonic()
    now = time.time()
    return Clock(now=now, monotonic=time.monotonic() >= earlier)
