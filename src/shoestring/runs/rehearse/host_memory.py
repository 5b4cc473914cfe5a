"""The memory of this machine: what processes use of it, and what is left before the system ends one."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from shoestring.base.units import GIB, KIB
from shoestring.planning.simulator.ledger import device_arenas

_SHARE = 8
_CGROUP = Path("/sys/fs/cgroup")


def used_bytes(processes: Iterable[int], folder: Path) -> int:
    """Return the memory that processes use together, without that of their simulated GPUs.

    Pages of files, such as PyTorch's libraries, do not count: the system may drop them. A page that several processes
    share, as after a fork, counts once.
    """
    arenas = device_arenas(folder)
    total = 0
    for pid in processes:
        with suppress(OSError, ValueError):
            total += max(0, _private_bytes(pid) - _arena_bytes(pid, arenas.get(pid)))
    return total


def _private_bytes(pid: int) -> int:
    """Return a process's part of the pages that are of no file: its own, and those of shared memory."""
    names = ("Pss_Anon:", "Pss_Shmem:")
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * KIB for line in lines if line.startswith(names))


def _arena_bytes(pid: int, arena: tuple[int, int] | None) -> int:
    """Return a process's part of the pages in an address range."""
    if arena is None:
        return 0
    total = 0
    is_inside = False
    with Path(f"/proc/{pid}/smaps").open() as lines:
        for line in lines:
            first = line.split(" ", 1)[0]
            if line[0] in "0123456789abcdef" and "-" in first:
                begin, end = (int(number, 16) for number in first.split("-"))
                is_inside = begin >= arena[0] and end <= arena[1]
            elif is_inside and first == "Pss:":
                total += int(line.split()[1]) * KIB
    return total


def spare_bytes() -> int:
    """Return what has to stay available, so that the system does not have to end any process."""
    total = _meminfo().get("MemTotal", 0)
    limits = [limit for limit, _ in _limits()]
    return min(GIB, min([total, *limits]) // _SHARE)


def available_bytes() -> int:
    """Return what processes can still use, on this machine and by the limits of its container."""
    free = [limit - used for limit, used in _limits()]
    return min([_meminfo().get("MemAvailable", 2**62), *free])


def killed_processes() -> int:
    """Return how many processes the system has ended so far because memory was used up."""
    total = 0
    for path, name in ((Path("/proc/vmstat"), "oom_kill"), (_CGROUP / "memory.events", "oom_kill")):
        with suppress(OSError, ValueError):
            total += _numbers(path).get(name, 0)
    return total


def _meminfo() -> dict[str, int]:
    with suppress(OSError, ValueError):
        return {name.rstrip(":"): number * KIB for name, number in _numbers(Path("/proc/meminfo")).items()}
    return {}


def _limits() -> list[tuple[int, int]]:
    """Return the limits of this container, with what is used of each and cannot be dropped."""
    limits = []
    for folder, limit, usage, file_pages in (
        (_CGROUP, "memory.max", "memory.current", "inactive_file"),
        (_CGROUP / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        with suppress(OSError, ValueError):  # there is no limit: no such file, or the word `max`
            limit_bytes = int((folder / limit).read_text())
            droppable = _numbers(folder / "memory.stat").get(file_pages, 0)
            limits.append((limit_bytes, int((folder / usage).read_text()) - droppable))
    return limits


def _numbers(path: Path) -> dict[str, int]:
    rows = (line.split() for line in path.read_text().splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) > 1}
