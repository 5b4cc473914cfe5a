"""The processes of a session's sinks."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from shoestring.base.streams import write_messages
from shoestring.base.system_errors import reason

_COMMAND = (sys.executable, "-P", "-m", "shoestring.training.monitor.sinks")
_WAIT_SECONDS = 10.0
"""For a sink to write the last events; its own process allows itself half of that."""


@contextmanager
def writing_logs(events_file: Path, folder: Path, names: Sequence[str]) -> Iterator[None]:
    """Write the record of a session to the sinks with these names, in folders of their names in `folder`."""
    started = {name: _start(events_file, folder / name, name) for name in dict.fromkeys(names)}
    processes = {name: process for name, process in started.items() if process}
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
            if process.returncode:  # an error has been reported by the process itself
                write_messages(f"note: {folder / name} may lack the last updates; a later session writes it anew")


def _start(events_file: Path, folder: Path, name: str) -> subprocess.Popen[bytes] | None:
    command = [*_COMMAND, str(events_file), str(folder), name]
    try:
        # In a group of its own: Ctrl-C is for the run, and would end this process while it imports.
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, process_group=0)
    except OSError as error:  # no memory, or too many processes
        write_messages(f"note: {folder} is not written: {reason(error)}; training is not affected")
        return None
