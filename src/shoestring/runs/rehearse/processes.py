"""The processes of a rehearsal: started, watched for the memory of this machine that they use, and ended together."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Literal

from shoestring.base.errors import RunError
from shoestring.runs.rehearse import guard, host_memory

_POLL_SECONDS = 0.25
_POLL_PAUSE = 4
"""The pause after a call of `poll`, as a multiple of the time that it took."""
_WATCH_SECONDS = 0.1
"""Between two looks at the memory that this machine has left."""
_MEMORY_SECONDS = 1.0
"""Between two readings of the memory of all processes, which takes some milliseconds for each."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Ending = Literal["exited", "interrupted", "host memory"]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How the processes of a script ended."""

    ending: Ending
    status: int | None
    """The exit status of the first process, negative for a signal; None if it was killed here, or is not known."""
    host_peak_bytes: int
    """The most memory of this machine that all processes used together, without that of simulated GPUs."""


def run(
    command: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    *,
    records: Path,
    stdout_to_stderr: bool,
    poll: Callable[[], object],
) -> Outcome:
    """Run a command to its end, calling `poll` a few times a second, and leave no process behind.

    Ctrl-C, SIGTERM and SIGHUP end all processes, and are an answer, not an error; a second one kills them at once. If
    this process is killed, `folder` is removed.

    Raises RunError if the command cannot be started.
    """
    with _noticed_signals() as signals, _Script(command, environment, folder, stdout_to_stderr) as script:
        peak = 0
        next_poll = next_reading = 0.0
        killed_before = host_memory.killed_processes()
        spare = host_memory.spare_bytes()
        ending: Ending = "exited"
        try:
            while script.is_running:
                current_time = time.monotonic()
                if signals:
                    ending = "interrupted"
                    break
                if host_memory.available_bytes() < spare:
                    ending = "host memory"
                    break
                if current_time >= next_reading:
                    next_reading = current_time + _MEMORY_SECONDS
                    peak = max(peak, host_memory.used_bytes(script.members(), records))
                if current_time >= next_poll:
                    poll()
                    # A script that writes much for it to read must not keep it from the memory.
                    took = time.monotonic() - current_time
                    next_poll = current_time + took + max(_POLL_SECONDS, _POLL_PAUSE * took)
                script.wait(_WATCH_SECONDS)
        except KeyboardInterrupt:
            ending = "interrupted"
        if ending == "host memory":
            peak = max(peak, host_memory.used_bytes(script.members(), records))
        earlier_signals = len(signals)
        script.end(is_patient=ending != "host memory", is_urgent=lambda: len(signals) > earlier_signals)
        status = script.status if ending == "exited" else None
        if status == -signal.SIGKILL and host_memory.killed_processes() > killed_before:
            ending, status = "host memory", None
        poll()
        return Outcome(ending=ending, status=status, host_peak_bytes=peak)


@contextmanager
def _noticed_signals() -> Iterator[list[int]]:
    """Collect the signals that ask this process to end, in place of what they do otherwise.

    One that was ignored, such as SIGHUP under nohup, stays so. Only the main thread can have handlers.
    """
    signals: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield signals
        return

    def notice(number: int, _frame: FrameType | None) -> None:
        signals.append(number)

    before = {number: handler for number in _SIGNALS if (handler := signal.getsignal(number)) is not signal.SIG_IGN}
    try:
        for number in before:
            signal.signal(number, notice)
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return False


class _Script:
    """A script's processes, below a guard that ends them also if this process is killed."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], folder: Path, stdout_to_stderr: bool
    ) -> None:
        self.is_running = True
        self.status: int | None = None
        """The exit status; None while it runs, and if the guard was killed."""
        control, self._control = os.pipe()
        self._report, report = os.pipe()
        arguments = [str(control), str(report), str(folder), "2" if stdout_to_stderr else "1", *command]
        try:
            self._guard = subprocess.Popen(
                [sys.executable, "-I", "-S", guard.__file__, *arguments],
                pass_fds=(control, report),
                start_new_session=True,
            )
        except OSError as error:
            self._close()
            raise RunError(
                f"the script could not be started: {error}", hint="check the memory and ulimit -u"
            ) from error
        finally:
            os.close(control)
            os.close(report)
        self._has_ended = False
        self._lines = b""
        self._pid = 0
        self._write(guard.environment_block(dict(environment)))
        while self._pid == 0 and self.is_running:
            self.wait(None)
        if self._pid == 0:
            self.__exit__()
            raise RunError("the script could not be started", hint="check the memory and ulimit -u")

    def __enter__(self) -> _Script:
        return self

    def __exit__(self, *_: object) -> None:
        self._write(b"done\n")
        self._close()
        with suppress(subprocess.TimeoutExpired):
            self._guard.wait(guard.PATIENCE_SECONDS)

    def wait(self, seconds: float | None) -> None:
        """Wait for the end of the script, but not longer than so many seconds."""
        if not select.select([self._report], [], [], seconds)[0]:
            return
        block = os.read(self._report, 4096)
        if not block:  # the script has killed the guard
            self.is_running = False
        *lines, self._lines = (self._lines + block).split(b"\n")
        for line in lines:
            word, _, value = line.decode(errors="replace").partition(" ")
            if word == "started":
                self._pid = int(value)
            elif word == "exited":
                self.status, self.is_running = int(value), False
            elif word == "failed":
                self.is_running = False
            elif word == "ended":
                self._has_ended = True

    def members(self) -> set[int]:
        """Return the numbers of the script's processes."""
        return guard.below(self._guard.pid)

    def end(self, *, is_patient: bool, is_urgent: Callable[[], bool]) -> None:
        """End all processes: they are asked to, and killed after some seconds, or as soon as it is urgent."""
        self._write(b"end\n" if is_patient else b"kill\n")
        deadline = time.monotonic() + 3 * guard.PATIENCE_SECONDS
        while not self._has_ended and self._guard.poll() is None and time.monotonic() < deadline:
            self.wait(_WATCH_SECONDS)
            if is_urgent():
                self._write(b"kill\n")
        if not self._has_ended:
            guard.end(self._session_members, 0.0, _sleep)

    def _session_members(self) -> set[int]:
        """Return those of the script's session, which are known also without the guard."""
        return {pid for pid, state, _, session in guard.processes() if session == self._pid and state not in "ZX"}

    def _write(self, content: bytes) -> None:
        with suppress(OSError):
            while content:
                content = content[os.write(self._control, content) :]

    def _close(self) -> None:
        for descriptor in (self._control, self._report):
            with suppress(OSError):
                os.close(descriptor)
