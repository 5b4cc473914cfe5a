"""Checks of the machine apart from the GPU: PyTorch, cores, memory, disk, clocks and environment variables."""

from shoestring.base.packages.requirements import library_of, remedy
from shoestring.base.units import GIB, MIB, bytes_text
from shoestring.hardware import cublas
from shoestring.runs.check.facts import Facts
from shoestring.runs.check.finding import Finding, failed, passed, warned

_EARLIEST = 1_735_689_600.0  # 2025-01-01, before this program existed
_LATEST = 4_102_444_800.0  # 2100-01-01
_CLOCK_TOLERANCE = 2.5  # seconds; some file systems store times in steps of two seconds
_SLOW_DISK = 20 * MIB  # bytes/s; a T4 session's own disk writes ten times faster
_SMALL_SHM = 64 * MIB  # the default size in a container
_TEMPORARY_FAIL, _TEMPORARY_WARN = 64 * MIB, GIB
_SLOWING = {
    "CUDA_LAUNCH_BLOCKING": "every kernel launch waits for the kernel to finish",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "the driver allocates every tensor, and memory estimates do not hold",
    "NVIDIA_TF32_OVERRIDE": "the driver decides whether to use TF32, whatever the settings are",
}


def check_pytorch(facts: Facts) -> Finding | None:
    """Check that PyTorch can be imported."""
    build = facts.build
    if not build.version:
        return failed("PyTorch", build.error, remedy([library_of("torch")]))
    return passed("PyTorch", f"version {build.version}, {build.threads} threads")


def check_cores(facts: Facts) -> Finding | None:
    """Check the number of usable hardware threads, and that torch respects the control group's limit."""
    usable, visible, threads = facts.host.cores, facts.host.visible_cores, facts.build.threads
    message = (
        f"{usable} of {visible} hardware threads are usable" if visible != usable else f"{usable} hardware threads"
    )
    if facts.build.version and threads > usable:
        return warned(
            "cores",
            f"{message}; torch would start {threads} threads, which would wait for each other",
            f"set OMP_NUM_THREADS={usable}",
        )
    expected = facts.target.platform.cores if facts.target.platform and not facts.is_local else None
    if expected and usable < expected:
        return warned(
            "cores",
            f"{message}; {facts.target.name} has {expected}",
            "expect loading data and starting to take longer than planned",
        )
    return passed("cores", message)


def check_ram(facts: Facts) -> Finding | None:
    """Check that enough RAM is free."""
    host = facts.host
    message = f"{bytes_text(host.ram_free_bytes)} of {bytes_text(host.ram_bytes)} is free"
    if host.ram_free_bytes < GIB:
        return failed("RAM", message, "end other processes: Python with torch alone needs half a GiB")
    if host.ram_free_bytes < host.ram_bytes / 4:
        return warned("RAM", message, "end other processes, or train with less data in memory")
    return passed("RAM", message)


def check_disk(facts: Facts) -> Finding | None:
    """Check by a write test that the run's directory is writable and fast enough, and that every limit leaves space."""
    name, disk = "disk", facts.disk
    if disk.error:
        return failed(
            name,
            f"writing to {disk.folder} failed after {bytes_text(disk.written_bytes)} of "
            f"{bytes_text(disk.requested_bytes)}: {disk.error}",
            "choose another directory for the run with --run DIR; on Kaggle use /kaggle/working (19.5 GB are saved)",
        )
    rate = disk.written_bytes / max(disk.seconds, 1e-9)
    message = (
        f"{bytes_text(disk.written_bytes)} was written to {disk.folder} at {bytes_text(rate)}/s; the system reports "
        f"{bytes_text(disk.free_bytes)} free"
    )
    limit = facts.target.platform.disk_bytes if facts.target.platform else None
    free_bytes = disk.free_bytes if limit is None else min(disk.free_bytes, limit - disk.used_bytes)
    if limit is not None and free_bytes < disk.free_bytes:
        message += f", {bytes_text(max(0, free_bytes))} within the limit of {facts.target.name}"
    if free_bytes < GIB:
        return warned(
            name,
            message,
            "free some space, or choose another directory for the run with --run DIR; it stores up to three full "
            "checkpoints at a time",
        )
    if rate < _SLOW_DISK:
        return warned(
            name,
            message,
            "choose a local disk with --run DIR, and copy the run at the end: a local disk saves faster than a mounted "
            "one",
        )
    return passed(name, message)


def check_temporary_folder(facts: Facts) -> Finding | None:
    """Check that the folder of temporary files has free space."""
    host = facts.host
    message = f"{bytes_text(host.temporary_free_bytes)} is free in {host.temporary}"
    if host.temporary_free_bytes >= _TEMPORARY_WARN:
        return passed("temporary files", message)
    make_finding = failed if host.temporary_free_bytes < _TEMPORARY_FAIL else warned
    return make_finding(
        "temporary files", message, "remove files there, or set TMPDIR=DIR to a directory on another disk"
    )


def check_shared_memory(facts: Facts) -> Finding | None:
    """Check that /dev/shm has space for the batches of data-loading processes."""
    free_bytes = facts.host.shm_bytes
    if free_bytes is None or free_bytes <= _SMALL_SHM:
        message = "there is no /dev/shm" if free_bytes is None else f"{bytes_text(free_bytes)} is free in /dev/shm"
        return warned(
            "shared memory",
            f"{message}, through which data-loading processes pass their batches",
            "set workers=0, or start the container with --shm-size=2g",
        )
    return passed("shared memory", f"{bytes_text(free_bytes)} is free in /dev/shm")


def check_clock(facts: Facts) -> Finding | None:
    """Check both clocks: deadlines use the monotonic clock; certificates, file times and dates use the wall clock."""
    name, offset = "clock", facts.disk.clock_offset_seconds
    if not facts.clock.monotonic:
        return failed(
            name,
            "the monotonic clock went backwards",
            "use another machine: sessions cannot keep their deadlines on this one",
        )
    if not _EARLIEST <= facts.clock.unix_seconds <= _LATEST:
        return warned(
            name,
            "the date is wrong by years",
            "set the clock: with a wrong date no certificate is valid, so downloads fail",
        )
    if offset is not None and abs(offset) > _CLOCK_TOLERANCE:
        return warned(
            name,
            f"the file system's clock differs from this machine's by {offset:+.0f} s",
            "do not compare file times across machines; deadlines do not use them",
        )
    return passed(name, "the clock is monotonic and agrees with the file system's clock")


def check_determinism(facts: Facts) -> Finding | None:
    """Check the environment variables that decide whether results are reproducible bit for bit."""
    if not (facts.driver and facts.driver.cards):
        return None
    workspace = facts.host.environment.get(cublas.CONFIG_VARIABLE)
    if workspace and workspace not in cublas.REPRODUCIBLE_CONFIGS:
        return warned(
            "same bits again",
            f"{cublas.CONFIG_VARIABLE}={workspace} lets cuBLAS round differently from run to run",
            f"unset it: training sets {cublas.TRAINING_CONFIG}",
        )
    return passed("same bits again", "training selects deterministic kernels when it starts")


def check_variables(facts: Facts) -> Finding | None:
    """Check for debugging variables that slow training down; no finding if there are none."""
    effects = {
        name: effect for name, effect in _SLOWING.items() if facts.host.environment.get(name) not in (None, "", "0")
    }
    if not effects:
        return None
    message = "; ".join(f"{name}={facts.host.environment[name]}: {effect}" for name, effect in effects.items())
    return warned("environment", message, f"unset {' '.join(effects)}")
