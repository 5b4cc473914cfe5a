"""A small process that ends a rehearsal whose own process was killed: python guard.py FOLDER

It reads the script's session from its standard input. When that input ends without the word `done`, the process that
wrote to it is gone: the script's processes are killed and the rehearsal's folder is removed. Nothing of Shoestring is
imported, so it starts at once.
"""

import os
import shutil
import signal
import sys
import time
from contextlib import suppress


def main() -> None:
    """Wait for the end of standard input, and clean up unless the rehearsal has ended properly."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    session = sys.stdin.readline().strip()
    if sys.stdin.read().strip() == "done" or not session.isdigit():
        return
    for _ in range(100):
        members = _members(int(session))
        for pid in members:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if not members:
            break
        time.sleep(0.1)
    shutil.rmtree(sys.argv[1], ignore_errors=True)


def _members(session: int) -> list[int]:
    """Return the processes of a session that have not ended."""
    members = []
    for name in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208
        with suppress(OSError):
            state = _state(int(name))
            if state != "Z" and os.getsid(int(name)) == session:
                members.append(int(name))
    return members


def _state(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
        return file.read().rpartition(")")[2].split()[0]


if __name__ == "__main__":
    main()
