"""The processes of a rehearsal: started, watched for the memory of this machine that they use, and ended together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from shoestring.base.units import GIB
from shoestring.planning.simulator.ledger import device_arenas

_POLL_SECONDS = 0.25
_MEMORY_SECONDS = 1.0
"""Between two readings of the memory of all processes, which takes some milliseconds for each."""
_SPARE_BYTES = GIB
"""When less of this machine's memory is left, the script is ended: the system would end any process instead."""
_EXIT_SECONDS = 10.0
"""How long the script's processes have to end after they are asked to."""

Ending = Literal["exited", "interrupted", "host memory"]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How the processes of a script ended."""

    ending: Ending
    status: int | None
    """The exit status of the first process, negative for a signal; None if it was killed here."""
    host_peak_bytes: int
    """The most memory of this machine that all processes used together, without that of simulated GPUs."""


def run(
    command: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    *,
    stdout_to_stderr: bool,
    poll: Callable[[], object],
) -> Outcome:
    """Run a command to its end, calling `poll` a few times a second, and leave no process behind.

    Ctrl-C ends all processes, and is an answer, not an error.
    """
    process = subprocess.Popen(
        list(command),
        env=dict(environment),
        stdout=2 if stdout_to_stderr else None,
        start_new_session=True,  # so that all processes can be ended together, and Ctrl-C reaches this one alone
    )
    peak = 0
    next_reading = 0.0
    guard = _start_guard(process.pid, folder)
    try:
        while process.poll() is None:
            poll()
            if time.monotonic() >= next_reading:
                next_reading = time.monotonic() + _MEMORY_SECONDS
                peak = max(peak, host_bytes(process.pid, folder))
                if psutil.virtual_memory().available < _SPARE_BYTES:
                    return Outcome(ending="host memory", status=None, host_peak_bytes=peak)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_POLL_SECONDS)
        return Outcome(ending="exited", status=process.returncode, host_peak_bytes=peak)
    except KeyboardInterrupt:
        return Outcome(ending="interrupted", status=None, host_peak_bytes=peak)
    finally:
        end_session(process)
        with suppress(OSError, subprocess.TimeoutExpired):
            guard.communicate(b"done\n", timeout=_EXIT_SECONDS)
        poll()


def _start_guard(session: int, folder: Path) -> subprocess.Popen[bytes]:
    """Start the process that ends the script's processes if this one is killed."""
    guard = subprocess.Popen(
        [sys.executable, "-I", "-S", str(Path(__file__).with_name("guard.py")), str(folder)],
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    assert guard.stdin is not None
    guard.stdin.write(f"{session}\n".encode())
    guard.stdin.flush()
    return guard


def end_session(process: subprocess.Popen[bytes]) -> None:
    """End all processes of a session: those that are left are asked to, and killed after some seconds."""
    members = _members(process.pid)
    for number in (signal.SIGTERM, signal.SIGKILL):
        for member in members:
            with suppress(psutil.NoSuchProcess):
                member.send_signal(number)
        _, members = psutil.wait_procs(members, timeout=_EXIT_SECONDS)
        if not members:
            break
    with suppress(subprocess.TimeoutExpired):
        process.wait(_EXIT_SECONDS)


def _members(session: int) -> list[psutil.Process]:
    """Return the living processes of a session, also those whose parent has ended."""
    members = []
    for process in psutil.process_iter():
        with suppress(OSError, psutil.NoSuchProcess):
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                members.append(process)
    return members


def host_bytes(session: int, folder: Path) -> int:
    """Return the memory of this machine that a session's processes use, without that of their simulated GPUs.

    Pages of files, such as PyTorch's libraries, do not count: the system may drop them.
    """
    arenas = device_arenas(folder)
    total = 0
    for process in _members(session):
        with suppress(OSError, ValueError):
            total += _anonymous_bytes(process.pid, arenas.get(process.pid))
    return total


def _anonymous_bytes(pid: int, arena: tuple[int, int] | None) -> int:
    """Return the anonymous memory of a process outside of an address range."""
    if arena is None:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        return sum(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("Anonymous:"))
    total = 0
    inside = False
    with Path(f"/proc/{pid}/smaps").open() as lines:
        for line in lines:
            if line[0] in "0123456789abcdef" and "-" in line.split(" ", 1)[0]:
                begin, end = (int(number, 16) for number in line.split(" ", 1)[0].split("-"))
                inside = begin >= arena[0] and end <= arena[1]
            elif not inside and line.startswith("Anonymous:"):
                total += int(line.split()[1]) * 1024
    return total
