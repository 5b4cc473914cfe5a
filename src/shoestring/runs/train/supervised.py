"""Training in a supervised process, and the state of a run whose training process could not write it."""

import importlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from signal import Signals
from typing import NoReturn

from shoestring.base.errors import RunError, ShoestringError, UsageError
from shoestring.base.streams import write_messages
from shoestring.hardware import probe, targets
from shoestring.hardware.catalog import Platform
from shoestring.runs.train.supervisor import ProcessEnd, supervise
from shoestring.training.checkpoint.manifest import DamagedFileError, load_manifest
from shoestring.training.checkpoint.names import update_of
from shoestring.training.engine.parallel.launcher import Launcher, end_with_agent, is_first_process
from shoestring.training.engine.parallel.rank_channel import PEER_LOST_STATUS, SILENCE_SECONDS
from shoestring.training.monitor.events import append_end
from shoestring.training.run_directory.directory import RunDirectory
from shoestring.training.run_directory.stored import START_AGAIN, StoredState
from shoestring.training.session.deadline import Deadline, seconds_to_end
from shoestring.training.session.outcome import Outcome
from shoestring.training.session.signals import STOP_SIGNALS

_LEFT_EARLY = "left Python without an error (status 0) before its session had ended"
_LEFT_EARLY_HINT = (
    "a call of os._exit in the recipe, or in a library that it uses, is the likely cause: raise an error instead"
)


def session_seconds(platform: Platform | None, limit_seconds: float | None) -> float | None:
    """Return the limit of a session: the one that is set, else the platform's."""
    if limit_seconds is None and platform and platform.session_hours:
        return platform.session_hours * 3600
    return limit_seconds


def train_supervised(
    work: Callable[[], int], run: Path, *, on: str, limit_seconds: float | None, started: float, resume_command: str
) -> Outcome:
    """Run `work`, which trains and returns an exit status, in a child process that is killed at the session's limit.

    Returns the outcome of a session that was ended at the limit. If the child ends by itself, this process exits with
    its status. The limit counts from `started`, a value of `time.monotonic()`.

    SIGTERM, SIGINT and SIGHUP stay blocked in this process: what follows is its end, and a signal that repeats the
    request after the child has ended must not change the exit status.

    Raises RunError if the child was killed by another process, or left Python before its session had ended.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    importlib.import_module("psutil")  # for the kill: at the limit there is no time for imports
    platform = probe.platform_here() if targets.is_here(on) else targets.find(on).platform
    limit_seconds = session_seconds(platform, limit_seconds)
    directory = RunDirectory(run)
    launcher = Launcher.find()
    if launcher:
        end_with_agent()
    writes = is_first_process()  # of those that a launcher has started, which all have a supervisor
    state_before = _read_state(directory)
    kill_at = None if limit_seconds is None else started + limit_seconds - seconds_to_end(limit_seconds)
    end = supervise(work, kill_at, silence_seconds=SILENCE_SECONDS if launcher else None)
    state = _read_state(directory)
    is_recorded = state is not None and state != state_before and state.status != "running"
    if state and is_recorded:
        if end.status < 0:
            # The session had recorded its end when the process was killed: only leaving Python was not complete.
            raise SystemExit(1 if state.status == "failed" else 0)
    elif end.at_limit and not writes:
        return (state or StoredState()).outcome()
    elif end.at_limit:
        assert limit_seconds is not None
        return _pause_at_limit(directory, limit_seconds, time.monotonic() - started, resume_command)
    if end.status == 0 and not end.has_returned and not is_recorded:
        if not writes:
            raise RunError(f"the training process {_LEFT_EARLY}", hint=_LEFT_EARLY_HINT)
        with _locked(directory):
            raise left_early("the training process", directory, resume_command)
    if end.status >= 0:
        raise SystemExit(end.status)
    if not writes:
        raise SystemExit(128 + end.by_request if end.by_request else PEER_LOST_STATUS)
    if end.by_request:
        _end_by(end.by_request, directory, resume_command)
    raise _killed(directory, end, resume_command)


def write_pause(
    directory: RunDirectory, reason: str, resume_command: str, *, seconds: float | None = None
) -> StoredState:
    """Write state.json and the last event of a session that was paused before it could do so itself.

    The caller holds the lock. `seconds` is the duration of the session. A finished run stays finished.

    Raises OSError.
    """
    state = write_state(directory, "paused", reason, resume_command)
    if state.status == "paused":
        duration = {} if seconds is None else {"seconds": seconds}
        append_end(directory.events_file, state.json(), update=state.update, status="paused", reason=reason, **duration)
    return state


def write_state(directory: RunDirectory, status: str, reason: str, resume_command: str) -> StoredState:
    """Write state.json at the update of the newest checkpoint, unless the run is finished. Raises OSError."""
    state = _read_state(directory) or StoredState()
    if state.status != "finished":
        update = newest_update(directory.checkpoints)
        if state.next and state.next != START_AGAIN:
            resume_command = state.next
        if not directory.plan_file.exists():
            resume_command = START_AGAIN
        with suppress(UsageError):  # a damaged plan is reported when the run is continued
            identity = directory.identity()
            state = replace(state, run=identity.id if identity else "")
        state = replace(state, status=status, reason=reason, update=update, next=resume_command)
        state.write_end(directory.state_file)
    return state


@contextmanager
def _locked(directory: RunDirectory) -> Iterator[None]:
    """Lock the directory, which the killed process may not have created.

    Raises UsageError if another process has the lock: the killed one was waiting for it.
    """
    directory.create()
    with directory.locked():
        yield


def newest_update(checkpoints: Path) -> int:
    """Return the update of the newest checkpoint; 0 if there is none.

    A checkpoint was verified when it was written, so only its manifest and the sizes of its files are compared here.
    """
    try:
        names = sorted((path.name for path in checkpoints.iterdir() if update_of(path.name)), reverse=True)
    except OSError:
        return 0
    return next((update_of(name) or 0 for name in names if _is_complete(checkpoints / name)), 0)


def _is_complete(checkpoint: Path) -> bool:
    try:
        entries = load_manifest(checkpoint).files
        return all((checkpoint / name).lstat().st_size == entry.bytes for name, entry in entries.items())
    except (OSError, DamagedFileError, ShoestringError):
        return False


def _read_state(directory: RunDirectory) -> StoredState | None:
    try:
        return directory.state()
    except ShoestringError:
        return None


def _pause_at_limit(directory: RunDirectory, limit_seconds: float, elapsed: float, resume_command: str) -> Outcome:
    reason = (
        f"{Deadline(limit_seconds).limit_text()}: the training process did not stop in time and was ended; "
        "updates after the last checkpoint are repeated"
    )
    with _locked(directory):
        return write_pause(directory, reason, resume_command, seconds=elapsed).outcome()


def _end_by(requested: Signals, directory: RunDirectory, resume_command: str) -> NoReturn:
    """End this process by the signal that has requested it for the second time."""
    with _locked(directory):
        state = write_pause(directory, f"{requested.name}, a second time", resume_command)
    lost = "" if state.next == START_AGAIN else f", and updates after update {state.update} are lost"
    write_messages(f"{requested.name} again: the run has ended at once{lost}; {_how_to_continue(state)}")
    signal.signal(requested, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [requested])
    os.kill(os.getpid(), requested)
    raise SystemExit(128 + requested)  # if the signal is ignored


def _how_to_continue(state: StoredState) -> str:
    if state.next == START_AGAIN:
        return state.next
    return f"train again to continue from update {state.update}: {state.next}"


def left_early(process: str, directory: RunDirectory, resume_command: str) -> RunError:
    """Record that a process has left Python before the end of its session, without an error, and return the error.

    The caller holds the lock.
    """
    reason = f"{process} {_LEFT_EARLY}"
    state = write_state(directory, "failed", reason, resume_command)
    return RunError(
        reason, hint=f"{_LEFT_EARLY_HINT}, then train again to continue from update {state.update}: {state.next}"
    )


def _killed(directory: RunDirectory, end: ProcessEnd, resume_command: str) -> RunError:
    """Return the error of a training process that a signal has ended.

    Its events have no end: the next session sees that it was killed, and whether memory was the reason.
    """
    signal_name = Signals(-end.status).name
    if end.is_silent:
        signal_name = f"{signal_name}, because it gave no sign of life for {SILENCE_SECONDS:.0f} s"
    reason = f"the training process was ended by {signal_name}"
    with _locked(directory):
        state = write_state(directory, "failed", reason, resume_command)
    memory = "; the system sends SIGKILL if memory runs out" if signal_name == "SIGKILL" else ""
    return RunError(f"{reason}{memory}", hint=_how_to_continue(state))
