"""The process of a session's backup: started before training, told the end of the session, waited for."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from shoestring.base.errors import RunError, UsageError
from shoestring.base.reading import real_path
from shoestring.base.streams import write_messages
from shoestring.base.system_errors import explaining, reason
from shoestring.base.units import seconds_text
from shoestring.remote.backup.conversation import parse_line
from shoestring.remote.backup.identity import earlier_url, ensure_identity
from shoestring.remote.backup.urls import parse_url
from shoestring.training.run_directory.directory import RunDirectory
from shoestring.training.session.deadline import Deadline, seconds_to_end
from shoestring.training.session.stop import Stop

_COMMAND = (sys.executable, "-P", "-m", "shoestring.remote.backup")
_CONNECT_SECONDS = 10.0
"""How long a session waits for the answer whether the place has copies of another run; then it begins to train."""
_UNLIMITED_SECONDS = 600.0
"""How long the last copy is waited for in a session without a limit."""
_LEAST_SECONDS = 0.2
_EXIT_SECONDS = 2.0
_POLL_SECONDS = 0.05


def require_elsewhere(run: RunDirectory, url: str | None, option: str) -> None:
    """Raise UsageError if `url`, which `option` names, cannot be a place for copies of the run."""
    if url is not None and (location := parse_url(url, option)).scheme == "file":
        folder, path = real_path(Path(location.path)), real_path(run.path)
        if folder == path or path in folder.parents or folder in path.parents:
            raise UsageError(
                f"{option} {url}: this folder and the run's directory {run.path} contain one another",
                hint="choose a folder elsewhere, best on another disk or machine",
            )


@contextmanager
def copying(run: RunDirectory, url: str | None, stop: Stop, option: str = "--backup") -> Iterator[None]:
    """Copy the run's checkpoints to `url`, if there is one, until the body ends; then wait for the last copy.

    It is waited for until the process has to end before the session's limit, or until a signal asks to stop. How long a
    copy takes is reserved of the deadline. The caller holds the run's lock. `option` is the name of `url` in messages.

    Raises UsageError if `url` is not valid or has copies of another run.
    """
    if url is None:
        if earlier := earlier_url(run):
            write_messages(f"note: earlier sessions have copied this run; to go on: {option} {earlier}")
        yield
        return
    location = parse_url(url, option)
    with explaining(f"{run.backup_file} could not be written", ", then train again"):
        run_id = ensure_identity(run, location.url)
    command = [*_COMMAND, "copy", str(run.path.absolute()), location.url, run_id]
    try:
        process = _start(command)
    except OSError as error:  # no memory, or too many processes
        write_messages(f"note: the run is not copied to {location.url}: {reason(error)}; training is not affected")
        yield
        return
    try:
        listener = _Listener(process.stdout, stop.deadline)
        listener.require_ready()
        yield
    finally:
        limit, remaining = stop.deadline.limit_seconds, stop.deadline.remaining()
        seconds = _UNLIMITED_SECONDS
        if limit is not None and remaining is not None:
            seconds = remaining - seconds_to_end(limit) - _EXIT_SECONDS
        _end(process, max(_LEAST_SECONDS, seconds), location.url, stop)


def restoring(
    run: RunDirectory, url: str, should_stop: Callable[[], object], option: str = "--from", *, backup: str | None = None
) -> None:
    """Restore the run from `url`, if it has no run yet, in a process of its own. `should_stop` may raise.
    `option` is the name of `url` in messages. If `backup`, where the run is copied to, is the same place, it may be
    empty.

    Raises UsageError and RunError as `restore` does.
    """
    location = parse_url(url, option)
    verb = "restore_or_begin" if backup is not None and parse_url(backup) == location else "restore"
    command = [*_COMMAND, verb, str(run.path.absolute()), location.url, option]
    with _start(command) as process:
        try:
            assert process.stdout
            answer = _next_answer(process.stdout, process, should_stop, option)
        except BaseException:
            process.kill()
            raise
    message = answer.get("restored")
    write_messages(str(message))


def _start(command: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a process in a group of its own: Ctrl-C is for this one, and would end the other while it imports."""
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0)


def _next_answer(
    stream: IO[bytes], process: subprocess.Popen[bytes], should_stop: Callable[[], object], option: str
) -> dict[str, Any]:
    while True:
        should_stop()  # also before the first wait, which a fast disk does not need
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.2)
            break
    line = stream.readline()
    try:
        return parse_line(line)
    except ValueError:
        raise RunError(
            f"restoring ended with status {process.returncode} without an answer", hint=f"train again with {option}"
        ) from None


class _Listener:
    """Reads what the process says, in a thread."""

    def __init__(self, stream: IO[bytes] | None, deadline: Deadline) -> None:
        assert stream
        self._stream, self._deadline = stream, deadline
        self._is_ready = threading.Event()
        self._is_awaited = True
        self._error: Exception | None = None
        threading.Thread(target=self._listen, name="backup", daemon=True).start()

    def require_ready(self) -> None:
        """Wait until the process begins to copy. Raises the error with which it has refused to."""
        self._is_awaited = self._is_ready.wait(_CONNECT_SECONDS)
        if self._error:
            raise self._error

    def _listen(self) -> None:
        with self._stream:
            self._read_answers()
        self._is_ready.set()

    def _read_answers(self) -> None:
        for line in self._stream:
            try:
                answer = parse_line(line)
            except ValueError:  # of a library
                continue
            except Exception as error:  # noqa: BLE001 - raised by the main thread
                if self._is_awaited:
                    self._error = error
                else:  # training has begun
                    write_messages(f"note: the run is not copied: {error}; training is not affected")
                break
            if "copied" in answer:
                # The last copy is made after training has stopped.
                self._deadline.reserve(_EXIT_SECONDS + 1.25 * float(answer["seconds"]))
            else:
                self._is_ready.set()


def _end(process: subprocess.Popen[bytes], seconds: float, url: str, stop: Stop) -> None:
    """Wait for the last copy, for so many seconds at most, or until a signal comes."""
    assert process.stdin
    with suppress(OSError):
        process.stdin.write(f"end {seconds:.3f}\n".encode())
        process.stdin.flush()
    was_stopped = stop.signals.received is not None
    started, is_announced = time.monotonic(), False
    while process.poll() is None and time.monotonic() - started < seconds + _EXIT_SECONDS / 2:
        if stop.signals.received and not was_stopped:
            break
        if not is_announced and time.monotonic() - started > _EXIT_SECONDS:
            is_announced = True
            write_messages(
                f"note: the run is saved; its last copy to {url} is waited for, at most {seconds_text(seconds)}; "
                "Ctrl-C gives it up"
            )
        time.sleep(_POLL_SECONDS)
    if process.poll() is None:
        process.kill()
        process.wait()
        write_messages(f"note: the last copy to {url} did not end in time and was given up")
    with suppress(OSError):
        process.stdin.close()
