"""Verdicts on the machine around the GPU: PyTorch itself, cores, memory, disk, clock, what variables change."""

from shoestring.check.facts import Facts
from shoestring.check.finding import Finding, failed, passed, warned
from shoestring.units import GIB, MIB, bytes_text

_EARLIEST = 1_735_689_600.0  # 2025-01-01: this program is younger
_LATEST = 4_102_444_800.0  # 2100-01-01
_APART = 2.5  # seconds; some file systems count in steps of two
_SLOW_DISK = 20 * MIB  # bytes/s; a T4 session's own disk writes ten times that
_LEAST_SHM = 64 * MIB  # what a container has unless told otherwise
_LEAST_TEMPORARY = (64 * MIB, GIB)
_DETERMINISTIC = (":4096:8", ":16:8")
"""Workspaces with which cuBLAS gives the same bits again (CUDA's documentation of cuBLAS, 2.1.4)."""
_SLOWING = {
    "CUDA_LAUNCH_BLOCKING": "every kernel is waited for",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "every tensor is allocated by the driver, and estimates do not hold",
    "NVIDIA_TF32_OVERRIDE": "the driver decides about TF32, whatever is set",
}


def pytorch(facts: Facts) -> Finding | None:
    build = facts.build
    if not build.version:
        return failed("PyTorch", build.error, "install it anew: pip install --force-reinstall torch")
    return passed("PyTorch", f"{build.version}, {build.threads} threads")


def cores(facts: Facts) -> Finding | None:
    """The control group's limit counts, and torch knows of it."""
    usable, seen, threads = facts.host.cores, facts.host.cores_seen, facts.build.threads
    said = f"{usable} hardware threads" + (f" of the {seen} that are seen" if seen != usable else "")
    if facts.build.version and threads > usable:
        return warned(
            "cores",
            f"{said}; torch would start {threads} threads, which wait for each other",
            f"OMP_NUM_THREADS={usable}",
        )
    expected = facts.on.platform.cores if facts.on.platform and not facts.probed else None
    if expected and usable < expected:
        return warned("cores", f"{said}; {facts.on.name} has {expected}", "input and start-up take longer than planned")
    return passed("cores", said)


def ram(facts: Facts) -> Finding | None:
    host = facts.host
    said = f"{bytes_text(host.ram_free_bytes)} free of {bytes_text(host.ram_bytes)}"
    if host.ram_free_bytes < GIB:
        return failed("RAM", said, "end what else runs here: Python with torch alone takes half a GiB")
    if host.ram_free_bytes < host.ram_bytes / 4:
        return warned("RAM", said, "end what else runs here, or train with smaller data in memory")
    return passed("RAM", said)


def disk(facts: Facts) -> Finding | None:
    """By writing: the run's directory takes bytes, fast enough, and there is room by every limit known."""
    name, seen = "disk", facts.disk
    if seen.error:
        return failed(
            name,
            f"{seen.folder}: {bytes_text(seen.written_bytes)} of {bytes_text(seen.asked_bytes)} written, then: "
            f"{seen.error}",
            "another place for the run: --run DIR; on Kaggle /kaggle/working, whose 20 GB are kept",
        )
    rate = seen.written_bytes / max(seen.seconds, 1e-9)
    said = (
        f"{seen.folder}: {bytes_text(seen.written_bytes)} written at {bytes_text(rate)}/s, "
        f"{bytes_text(seen.free_bytes)} free as claimed"
    )
    limit = facts.on.platform.disk_bytes if facts.on.platform else None
    left = seen.free_bytes if limit is None else min(seen.free_bytes, limit - seen.used_bytes)
    if limit is not None and left < seen.free_bytes:
        said += f", {bytes_text(max(0, left))} by the limit of {facts.on.name}"
    if left < GIB:
        return warned(
            name, said, "free space, or another place for the run: --run DIR; three full checkpoints lie there at times"
        )
    if rate < _SLOW_DISK:
        return warned(name, said, "a local disk saves faster than a mounted one: --run DIR there, copied at the end")
    return passed(name, said)


def temporary(facts: Facts) -> Finding | None:
    host = facts.host
    said = f"{bytes_text(host.temporary_free_bytes)} free in {host.temporary}"
    least, enough = _LEAST_TEMPORARY
    if host.temporary_free_bytes >= enough:
        return passed("temporary files", said)
    tell = failed if host.temporary_free_bytes < least else warned
    return tell("temporary files", said, "remove what is there, or TMPDIR=DIR on another disk")


def shared_memory(facts: Facts) -> Finding | None:
    free = facts.host.shm_bytes
    if free is None or free <= _LEAST_SHM:
        said = "there is no /dev/shm" if free is None else f"{bytes_text(free)} free in /dev/shm"
        return warned(
            "shared memory",
            f"{said}, where processes that fetch data leave their batches",
            "workers=0; or start the container with --shm-size=2g",
        )
    return passed("shared memory", f"{bytes_text(free)} free in /dev/shm")


def clock(facts: Facts) -> Finding | None:
    """Deadlines count by the steady clock; certificates, file times and calendars by the other."""
    name, offset = "clock", facts.disk.clock_offset_seconds
    if not facts.clock.monotonic:
        return failed(name, "the steady clock went backwards", "another machine: no deadline can be kept on this one")
    if not _EARLIEST <= facts.clock.now <= _LATEST:
        return warned(
            name,
            "the date is wrong by years",
            "set the clock: with a wrong date no certificate is valid, so no download",
        )
    if offset is not None and abs(offset) > _APART:
        return warned(
            name,
            f"a file just written is dated {offset:+.0f} s from now",
            "the file system keeps another time: compare no file times across machines; deadlines do not use them",
        )
    return passed(name, "steady, and the file system agrees")


def determinism(facts: Facts) -> Finding | None:
    """What a run's bits depend on outside of the run."""
    if not (facts.driver and facts.driver.cards):
        return None
    chosen = facts.host.environment.get("CUBLAS_WORKSPACE_CONFIG")
    if chosen and chosen not in _DETERMINISTIC:
        return warned(
            "same bits again",
            f"CUBLAS_WORKSPACE_CONFIG={chosen} lets cuBLAS round differently from run to run",
            "unset it: training sets :4096:8",
        )
    return passed("same bits again", "deterministic kernels are chosen when training begins")


def variables(facts: Facts) -> Finding | None:
    """Variables left from a hunt for a bug."""
    found = {name: what for name, what in _SLOWING.items() if facts.host.environment.get(name) not in (None, "", "0")}
    if not found:
        return None
    said = "; ".join(f"{name}={facts.host.environment[name]}: {what}" for name, what in found.items())
    return warned("environment", said, f"unset {' '.join(found)}")
