"""Which process a number names: the same number may be another process after a restart, or in another container.

The time at which a process started does not tell it: that is computed from the clock of the machine, which may be set.
"""

from contextlib import suppress
from pathlib import Path


def process_identity(pid: int) -> str:
    """Return the boot of this machine, the namespace of process numbers, and when the process started since the boot,
    in ticks; empty if there is no such process, or no /proc.
    """
    with suppress(OSError, IndexError):
        # The second field, the name of the program in parentheses, may contain spaces.
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return f"{_boot_and_namespace()}.{fields[19]}"
    return ""


def is_same_process(pid: int, identity: str) -> bool | None:
    """Return whether the number is still the process with this identity; None in another container than its own."""
    boot, _, namespace_and_start = identity.partition(".")
    own_boot, _, own_namespace = _boot_and_namespace().partition(".")
    if boot == own_boot and namespace_and_start.partition(".")[0] != own_namespace:
        return None
    return process_identity(pid) == identity


def _boot_and_namespace() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")[:8]
    return f"{boot}.{Path('/proc/self/ns/pid').stat().st_ino}"
