"""The processes of a session's sinks."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from shoestring.streams import write_messages

_COMMAND = (sys.executable, "-P", "-m", "shoestring.monitor.sinks")
_WAIT_SECONDS = 10.0
"""For a sink to write the last events; its own process allows itself half of that."""


@contextmanager
def logging(events_file: Path, folder: Path, names: Sequence[str]) -> Iterator[None]:
    """Write the record of a session to the sinks with these names, in folders of their names in `folder`."""
    processes = {name: _start(events_file, folder / name, name) for name in dict.fromkeys(names)}
    try:
        yield
    finally:
        for process in processes.values():
            assert process.stdin
            process.stdin.close()
        deadline = time.monotonic() + _WAIT_SECONDS
        for name, process in processes.items():
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.returncode:
                write_messages(f"note: {folder / name} may lack the last updates; the next session writes it anew")


def _start(events_file: Path, folder: Path, name: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*_COMMAND, str(events_file), str(folder), name], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
