"""The process between a rehearsal and its script: python guard.py CONTROL REPORT FOLDER STDOUT COMMAND...

It starts the script and is the parent of every process that the script leaves behind, also of one that made a
session of its own (a daemon, the ranks of torchrun): so all can be found and ended. CONTROL and REPORT are descriptors
of pipes. From the first it reads the script's environment, and then `end` or `kill`, for which it ends all of them, and
`done`. When that pipe ends without `done`, the rehearsal itself was killed: all processes are ended and FOLDER is
removed. To the second it writes `started PID`, `exited STATUS` and `ended`. Nothing of Shoestring is imported, so it
starts at once.
"""

import ctypes
import os
import select
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from contextlib import suppress

PATIENCE_SECONDS = 10.0
"""How long the script's processes have to end after they are asked to."""
_LENGTH = struct.Struct("<Q")
_PR_SET_CHILD_SUBREAPER = 36
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_FIRST_CHOICE = 500
"""Added to the script's score when the system chooses a process to kill because its memory is used up."""


def environment_block(environment: dict[str, str]) -> bytes:
    """Return an environment as it is written to the control pipe."""
    content = b"\0".join(os.fsencode(f"{name}={value}") for name, value in environment.items())
    return _LENGTH.pack(len(content)) + content


def main() -> None:
    """Start the script, and stay until the rehearsal says that it is done, or is gone."""
    for number in _SIGNALS:  # a handler, unlike `SIG_IGN`, is not inherited by the script
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    control, report, folder, stdout = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    wake, woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    try:
        script = _start(sys.argv[5:], _read_environment(control), stdout)
    except (OSError, ValueError) as error:
        _tell(report, f"failed {error}")
        return
    _tell(report, f"started {script}")
    Guard(script, control, report, wake).stay(folder)


class Guard:
    """Waits for the script and for words of the rehearsal."""

    def __init__(self, script: int, control: int, report: int, wake: int) -> None:
        self._script = script
        self._control = control
        self._report = report
        self._wake = wake

    def stay(self, folder: str) -> None:
        """Do what the rehearsal says, until it is done or gone."""
        while True:
            words = self._next_words(None)
            if "done" in words:
                return
            if "" in words:
                end(descendants, 3.0, self._reap)
                shutil.rmtree(folder, ignore_errors=True)
                return
            if "end" in words or "kill" in words:
                end(descendants, 0.0 if "kill" in words else PATIENCE_SECONDS, self._reap)
                _tell(self._report, "ended")

    def _next_words(self, seconds: float | None) -> list[str]:
        """Return what the rehearsal says, waiting for it; "" if it is gone."""
        while True:
            readable, _, _ = select.select([self._control, self._wake], [], [], seconds)
            if self._wake in readable:
                with suppress(BlockingIOError):
                    os.read(self._wake, 4096)
                self._reap_all()
            if self._control in readable:
                words = os.read(self._control, 4096).decode().split()
                return words or [""]
            if seconds is not None:
                return []

    def _reap(self, seconds: float) -> bool:
        """Notice ended processes for some time; return whether the rehearsal wants no more waiting."""
        words = self._next_words(seconds)
        self._reap_all()
        if "" in words:  # from now on the pipe is always readable
            time.sleep(seconds)
        return "kill" in words or "" in words

    def _reap_all(self) -> None:
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self._script:
                    _tell(self._report, f"exited {os.waitstatus_to_exitcode(status)}")


def end(members: Callable[[], Collection[int]], seconds: float, wait: Callable[[float], bool]) -> None:
    """Ask all processes of a set to end, and kill them after some seconds; `wait` may return True to kill them now.

    Those that they start meanwhile are ended as well.
    """
    deadline = time.monotonic() + seconds
    notified: set[int] = set()
    last = deadline + PATIENCE_SECONDS  # what cannot be killed waits in the kernel, for a disk of the network
    while (living := members()) and time.monotonic() < last:
        is_late = time.monotonic() >= deadline
        for pid in living if is_late else set(living) - notified:
            notified.add(pid)
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL if is_late else signal.SIGTERM)
                os.kill(pid, signal.SIGCONT)  # one that is stopped would not notice
        if wait(0.02 if is_late else 0.1):
            deadline = time.monotonic()


def descendants() -> set[int]:
    """Return the processes below this one that have not ended."""
    return below(os.getpid())


def below(root: int) -> set[int]:
    """Return the processes below one that have not ended."""
    children: dict[int, list[int]] = {}
    zombies = set()
    for pid, state, parent, _ in processes():
        children.setdefault(parent, []).append(pid)
        if state in "ZX":
            zombies.add(pid)
    members: set[int] = set()
    waiting = list(children.get(root, ()))
    while waiting:
        pid = waiting.pop()
        if pid not in members:
            members.add(pid)
            waiting += children.get(pid, ())
    return members - zombies


def processes() -> list[tuple[int, str, int, int]]:
    """Return the number, state, parent and session of all processes."""
    members = []
    for name in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208
        with suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
            fields = file.read().rpartition(b")")[2].split()
            members.append((int(name), fields[0].decode(), int(fields[1]), int(fields[3])))
    return members


def _start(command: list[str], environment: dict[str, str], stdout: int) -> int:
    """Start the script in a session of its own, so that Ctrl-C reaches the rehearsal alone, and return its number."""
    score = "/proc/self/oom_score_adj"
    before = "0"
    with suppress(OSError), open(score) as file:  # noqa: PTH123
        before = file.read().strip()
    _write_score(score, str(max(int(before), _FIRST_CHOICE)))
    try:
        process = subprocess.Popen(
            command, env=environment, stdout=stdout if stdout > 1 else None, start_new_session=True
        )
    finally:
        _write_score(score, before)
    process.returncode = 0  # it is waited for here, not by `subprocess`
    return process.pid


def _write_score(path: str, value: str) -> None:
    with suppress(OSError), open(path, "w") as file:  # noqa: PTH123
        file.write(value)


def _read_environment(control: int) -> dict[str, str]:
    (length,) = _LENGTH.unpack(_read(control, _LENGTH.size))
    content = _read(control, length)
    pairs = (os.fsdecode(pair).partition("=") for pair in content.split(b"\0") if pair)
    return {name: value for name, _, value in pairs}


def _read(descriptor: int, size: int) -> bytes:
    content = b""
    while len(content) < size:
        block = os.read(descriptor, size - len(content))
        if not block:
            raise ValueError("the rehearsal has ended")
        content += block
    return content


def _tell(report: int, line: str) -> None:
    with suppress(OSError):
        os.write(report, f"{line}\n".encode())


if __name__ == "__main__":
    main()
