"""The host memory of a run: of its whole process tree, against the limit at which the kernel ends processes."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoestring.base.units import bytes_text
from shoestring.hardware.probe import control_files, file_bytes

_ROOT = Path("/")
_NEAR = 0.9
"""The kernel ends a process when the memory in use reaches the limit. A measurement is from up to an update before."""


@dataclass(frozen=True, kw_only=True)
class HostMemory:
    """A measurement of host memory in bytes."""

    used_bytes: int
    """Of the control group whose limit applies, without pages that the kernel can drop; else of the machine."""
    limit_bytes: int
    """The limit of the control group, or the RAM of the machine."""
    oom_kills: int | None = None
    """How many processes of the control group the kernel has ended for lack of memory; None if it is not readable."""
    group: str = ""
    """Identifies the control group among those of all machines: a count of another group cannot be compared."""
    process_bytes: int | None = None
    """The resident memory of this process alone; None in an event of an earlier version."""

    @property
    def is_near_limit(self) -> bool:
        return self.used_bytes >= _NEAR * self.limit_bytes

    @property
    def free_bytes(self) -> int:
        """What can be used until the limit is near."""
        return max(0, int(_NEAR * self.limit_bytes) - self.used_bytes)

    def text(self) -> str:
        return f"{bytes_text(self.used_bytes)} of {bytes_text(self.limit_bytes)}"

    def usage(self) -> dict[str, int]:
        """Return the fields of a `progress` event."""
        own = {} if self.process_bytes is None else {"process_bytes": self.process_bytes}
        return {"host_bytes": self.used_bytes, "host_limit_bytes": self.limit_bytes, **own}

    def json(self) -> dict[str, Any]:
        """Return the fields of a `session` or `memory` event."""
        return {**self.usage(), "oom_kills": self.oom_kills, "memory_group": self.group}

    @classmethod
    def from_event(cls, event: Mapping[str, Any]) -> HostMemory | None:
        """Return the measurement in an event; None if it has none, as in version 0.1.0, or an invalid one."""
        used, limit, kills = event.get("host_bytes"), event.get("host_limit_bytes"), event.get("oom_kills")
        own = event.get("process_bytes")
        if not isinstance(used, int) or not isinstance(limit, int):
            return None
        return cls(
            used_bytes=used,
            limit_bytes=limit,
            oom_kills=kills if isinstance(kills, int) else None,
            group=str(event.get("memory_group", "")),
            process_bytes=own if isinstance(own, int) else None,
        )


def host_memory(root: Path = _ROOT) -> HostMemory:
    """Measure the memory of this process tree, its limit, and the kernel's count of ended processes."""
    import psutil

    machine = psutil.virtual_memory()
    used, limit = int(machine.total - machine.available), int(machine.total)
    if used >= _NEAR * limit:
        used = min(used, tree_bytes())  # the memory may be that of other processes
    for name in ("memory.max", "memory.high"):
        for file in control_files(root, "memory", name, "memory.limit_in_bytes"):
            with suppress(OSError, ValueError):
                group_limit = int(file.read_text())
                if group_limit < limit:
                    used, limit = _group_used_bytes(file.parent), group_limit
    kills, group = _kernel_kills(root)
    own = int(psutil.Process().memory_info().rss)
    return HostMemory(used_bytes=used, limit_bytes=limit, oom_kills=kills, group=group, process_bytes=own)


def tree_bytes() -> int:
    """Return the sum of the resident memory of this process and its descendants; shared pages count several times."""
    import psutil

    process, total = psutil.Process(), 0
    for member in (process, *process.children(recursive=True)):
        with suppress(psutil.Error):  # it has just ended
            total += member.memory_info().rss
    return total


def describe_memory() -> list[str]:
    """Describe the memory of this process, its machine and its GPU, for an error message."""
    memory, tree = host_memory(), tree_bytes()
    facts = [f"this process and its children use {bytes_text(tree)} of host memory; in use: {memory.text()}"]
    facts += [f"the limit of this process's {name} is {bytes_text(size)} (ulimit)" for name, size in _process_limits()]
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        with suppress(RuntimeError):  # a lost context answers no question
            free, total = torch.cuda.mem_get_info()
            reserved = bytes_text(torch.cuda.memory_reserved())
            facts.append(f"the GPU has {bytes_text(total)}: {bytes_text(free)} free, {reserved} reserved by torch")
    return facts


def _process_limits() -> Iterator[tuple[str, int]]:
    import resource

    for name, kind in (("address space", resource.RLIMIT_AS), ("data", resource.RLIMIT_DATA)):
        soft, _ = resource.getrlimit(kind)
        if soft != resource.RLIM_INFINITY:
            yield name, soft


def _group_used_bytes(group: Path) -> int:
    """Return the bytes that a control group uses, without file pages, which the kernel drops when memory is needed."""
    name = "memory.current" if (group / "memory.current").is_file() else "memory.usage_in_bytes"
    files = sum(file_bytes(group / "memory.stat", kind) for kind in ("active", "inactive"))
    return max(0, int((group / name).read_text()) - files)


def _kernel_kills(root: Path) -> tuple[int | None, str]:
    """Return the kernel's count of ended processes in the control group of this process, and the group's identity."""
    for file in control_files(root, "memory", "memory.events", "memory.oom_control"):
        with suppress(OSError, ValueError, KeyError):
            counts = dict(line.split() for line in file.read_text().splitlines())
            boot = (root / "proc/sys/kernel/random/boot_id").read_text().strip()
            return int(counts["oom_kill"]), f"{boot} {file.parent.stat().st_ino}"
    return None, ""
