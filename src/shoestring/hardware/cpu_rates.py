"""The rates of the CPU of this machine: measured once, checked for disturbance, and kept in the user's cache.

A measurement on a busy machine is too low. It is noticed by the time that threads of this process waited for a
processor, and by repetitions that differ; then it is repeated, but no attempt starts after half a second. Disturbances
only lower a rate, so the fastest repetition counts. What is still disturbed is kept too, marked as such: each later
process makes one more attempt, which takes a tenth of a second, until one is undisturbed.

The cache is a file for each CPU, number of cores and version of NumPy in `$XDG_CACHE_HOME/shoestring/cpu_rates` (by
default below `~/.cache`). It only saves time: a file that cannot be read, is damaged, or belongs to someone else is
ignored, and a folder that cannot be written to is too.
"""

import hashlib
import importlib.metadata
import json
import os
import stat
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import monotonic, perf_counter, thread_time
from typing import Any

from shoestring.base.reading import Kind, find_problems, read_json
from shoestring.base.units import MIB

_ROOT = Path("/")
_FORMAT = "shoestring CPU rates 1"
_MAX_BYTES = 4096
_SIDE = 1024
_COPY_BYTES = 64 * MIB
_REPETITIONS = 5
_MAX_SECONDS = 0.5
"""No further attempt starts after this time."""
_MAX_WAITING = 0.02
"""The share of the time that threads may wait for a processor. It is below 0.005 on an idle machine, and above 0.5 on
two cores of which another process uses one."""
_MAX_SPREAD = 0.1
"""Below 0.04 on an idle machine."""
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Environment variables that set the number of threads of NumPy's products."""


@dataclass(frozen=True, kw_only=True)
class CpuRates:
    """What a CPU reaches, and how certain that is."""

    fp32_flops: float
    """FLOP/s of the product of two large matrices in fp32."""
    bandwidth: float
    """Bytes/s of a large copy, reads plus writes."""
    spread: float
    """By which share the median repetition was slower than the fastest one."""
    is_disturbed: bool
    """Whether other processes took part of the CPU, so that the rates may be too low."""


NOMINAL = CpuRates(fp32_flops=250e9, bandwidth=40e9, spread=0.0, is_disturbed=False)
"""The rates by which settings for a CPU are compared, so that neither the load of the machine nor the machine itself
changes a choice. They are those of two cores of an AMD EPYC, like those that notebook services lend."""

_KINDS: Mapping[str, Kind] = {
    "fp32_flops": Kind(name="a rate from 1e6 to 1e16", types=(int, float), low=1e6, high=1e16),
    "bandwidth": Kind(name="a rate from 1e6 to 1e16", types=(int, float), low=1e6, high=1e16),
    "spread": Kind(name="a number from 0 to 1e6", types=(int, float), low=0.0, high=1e6),
    "is_disturbed": Kind(name="true or false", types=(bool,)),
}


def cpu_rates(cpu: str, cores: int) -> CpuRates:
    """Return the rates of this machine, whose CPU is called `cpu`, for a process that may use so many cores."""
    subject = {
        "cpu": cpu,
        "cores": cores,
        "numpy": importlib.metadata.version("numpy"),
        "threads": {name: os.environ[name] for name in _THREADS if name in os.environ},
    }
    file = _cache_file(subject)
    known = read_cached(file, subject) if file else None
    if known and not known.is_disturbed:
        return known
    rates = _measure(known)
    if file and rates != known:
        with suppress(OSError):
            write_cached(file, subject, rates)
    return rates


def _measure(known: CpuRates | None) -> CpuRates:
    """Return the best rates of several attempts, or of one attempt and `known` rates that are disturbed."""
    start, best = monotonic(), known
    while True:
        attempt = _attempt()
        best = _better(best, attempt) if best else attempt
        if known or not attempt.is_disturbed or monotonic() - start > _MAX_SECONDS:
            return best


def _better(earlier: CpuRates, later: CpuRates) -> CpuRates:
    return CpuRates(
        fp32_flops=max(earlier.fp32_flops, later.fp32_flops),
        bandwidth=max(earlier.bandwidth, later.bandwidth),
        spread=later.spread,
        is_disturbed=later.is_disturbed,
    )


def _attempt() -> CpuRates:
    """Measure products and copies in turn, each several times."""
    import numpy as np

    matrix = np.ones((_SIDE, _SIDE), np.float32)
    product = np.matmul(matrix, matrix)  # the first product starts the threads
    source_bytes, target_bytes = np.ones(_COPY_BYTES, np.uint8), np.ones(_COPY_BYTES, np.uint8)
    multiply_seconds, copy_seconds = [], []
    waited, start = waited_seconds(), perf_counter()
    for _ in range(_REPETITIONS):
        before = perf_counter()
        np.matmul(matrix, matrix, out=product)
        between = perf_counter()
        np.copyto(target_bytes, source_bytes)
        multiply_seconds.append(between - before)
        copy_seconds.append(perf_counter() - between)
    waiting = (waited_seconds() - waited) / (perf_counter() - start)
    spread = max(median(times) / min(times) - 1 for times in (multiply_seconds, copy_seconds))
    return CpuRates(
        fp32_flops=2 * _SIDE**3 / min(multiply_seconds),
        bandwidth=2 * _COPY_BYTES / min(copy_seconds),
        spread=spread,
        is_disturbed=waiting > _MAX_WAITING or spread > _MAX_SPREAD,
    )


def waited_seconds(root: Path = _ROOT) -> float:
    """Return how long the threads of this process were ready to run and had no processor; only differences count.

    A kernel without these statistics does not tell: then it is how long this thread did not compute, for any reason.
    """
    nanoseconds = []
    for file in (root / "proc/self/task").glob("*/schedstat"):
        with suppress(OSError):  # a thread that has ended
            nanoseconds.append(int(file.read_text().split()[1]))
    return sum(nanoseconds) / 1e9 if nanoseconds else perf_counter() - thread_time()


def _cache_file(subject: Mapping[str, Any]) -> Path | None:
    """Return the file of the cache; None if the user has no home directory."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    try:
        # The specification of the variable says that a relative path is to be ignored.
        base = Path(cache) if Path(cache).is_absolute() else Path.home() / ".cache"
    except RuntimeError:
        return None
    digest = hashlib.sha256(json.dumps(subject, sort_keys=True).encode()).hexdigest()
    return base / "shoestring" / "cpu_rates" / f"{digest[:16]}.json"


def read_cached(file: Path, subject: Mapping[str, Any]) -> CpuRates | None:
    """Return the rates in the file; None if it has none of this subject that can be relied on."""
    try:
        if not _is_own(file.parent, stat.S_ISDIR) or not _is_own(file, stat.S_ISREG):
            return None
        values = read_json(file, max_bytes=_MAX_BYTES)
    except (OSError, ValueError):
        return None
    if not isinstance(values, dict) or values.get("format") != _FORMAT or values.get("subject") != subject:
        return None
    rates = values.get("rates")
    if not isinstance(rates, dict) or rates.keys() != _KINDS.keys() or find_problems(rates, _KINDS):
        return None
    return CpuRates(**rates)


def write_cached(file: Path, subject: Mapping[str, Any], rates: CpuRates) -> None:
    """Replace the file: a reader sees the old content or the new one. Raises OSError."""
    file.parent.parent.mkdir(parents=True, exist_ok=True)
    file.parent.mkdir(mode=0o700, exist_ok=True)
    if not _is_own(file.parent, stat.S_ISDIR):
        return
    text = json.dumps({"format": _FORMAT, "subject": subject, "rates": asdict(rates)}, indent=1, allow_nan=False)
    descriptor, name = tempfile.mkstemp(dir=file.parent)
    try:
        with os.fdopen(descriptor, "w") as temporary:
            temporary.write(f"{text}\n")
        Path(name).replace(file)
    finally:
        Path(name).unlink(missing_ok=True)


def _is_own(path: Path, is_kind: Any) -> bool:
    """Return whether nobody but this user and root can have made or changed a path that is no link. Raises OSError."""
    status = path.lstat()
    return bool(is_kind(status.st_mode)) and status.st_uid == os.getuid() and not status.st_mode & 0o022
