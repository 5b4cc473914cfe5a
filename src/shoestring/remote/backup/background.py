"""Copying each new checkpoint of a session in the background, with retries, until the session has ended."""

import os
import sys
import threading
import time

from shoestring.base.errors import ShoestringError, UsageError
from shoestring.base.streams import write_messages
from shoestring.base.system_errors import reason
from shoestring.remote.backup.conversation import Life, send
from shoestring.remote.backup.copying import Copier
from shoestring.remote.backup.opened import UnsettledError, newest_checkpoint
from shoestring.remote.backup.stores import Store, open_store
from shoestring.remote.backup.urls import Location, redacted
from shoestring.remote.kaggle.client import KaggleError
from shoestring.training.monitor.events import append
from shoestring.training.run_directory.directory import RunDirectory

_POLL_SECONDS = 0.25
_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 1.0, 300.0
_SILENT_SECONDS = float(os.environ.get("SHOESTRING_BACKUP_SILENCE", "300"))
"""Without a block moved for so long, a request hangs, and the process starts again."""
_LAST_SECONDS = min(60.0, _SILENT_SECONDS)
"""For so long after the end of a session a copy that fails is tried again: the run is saved, and somebody waits."""
_LAST_SILENT_SECONDS = min(120.0, _SILENT_SECONDS)
"""Without a block moved for so long after the end of a session, the copy is given up."""


class Background:
    """Copies a run while it trains. No error of the place ends it, and none reaches the run."""

    def __init__(self, run: RunDirectory, location: Location, run_id: str, life: Life) -> None:
        self._run, self._location, self._run_id, self._life = run, location, run_id, life
        self._moved_at = time.monotonic()
        self._is_busy = False
        self._copied: int | None = None
        self._failure = ""
        """Why the last attempt failed; empty if it did not."""
        self._is_refused = False
        """Whether no later attempt can succeed: the place belongs to another run or machine, or refuses the account."""
        self._waits = 0
        self._unrecorded: dict[str, object] = {}
        """The failure that the record could not take yet: the session opens it after this process has started."""
        self._store: Store | None = None
        self._copier: Copier | None = None

    def run(self) -> None:
        """Copy until the session has ended. Raises UsageError if the place belongs to another run."""
        self._life.on_limit = self._give_up
        threading.Thread(target=self._watch, name="watch", daemon=True).start()
        try:
            self._run_to_end()
        finally:
            self._close()

    def _run_to_end(self) -> None:
        try:
            self._require_own()
        except UsageError:
            raise
        except Exception as error:  # noqa: BLE001 - the place cannot be reached yet
            self._failed(error)
        send(ready=True)
        next_at = 0.0
        while not self._life.end.wait(_POLL_SECONDS):
            self._record_failure()
            newest = newest_checkpoint(self._run)
            is_due = newest is not None and newest != self._copied and time.monotonic() >= next_at
            if is_due and not self._is_refused:
                next_at = time.monotonic() + (0.0 if self._copy() else self._wait_seconds())
        last_attempt_at = time.monotonic() + _LAST_SECONDS
        while not self._is_refused and not self._copy():
            if time.monotonic() > last_attempt_at:
                self._give_up()
                return
            time.sleep(min(self._wait_seconds(), 5.0))
        if self._is_refused:
            self._give_up()

    def _require_own(self) -> None:
        self._is_busy, self._moved_at = True, time.monotonic()
        try:
            self._store = open_store(self._location, self._note_progress)
            self._copier = Copier(self._run, self._store, self._run_id, on_block=self._note_progress)
            self._copier.require_own()
        finally:
            self._is_busy = False

    def _copy(self) -> bool:
        """Copy the run as it is now; return whether that is done, or there is nothing to copy."""
        update = newest_checkpoint(self._run)
        if update is None:
            return True
        self._is_busy, self._moved_at = True, time.monotonic()
        try:
            if self._copier is None:
                self._require_own()
            assert self._copier
            copied = self._copier.copy()
        except Exception as error:  # noqa: BLE001 - of any library: training is not affected
            self._failed(error)
            return False
        finally:
            self._is_busy = False
        self._failure, self._waits = "", 0
        self._copied = copied.update if copied else update
        if copied:
            values = {"bytes": copied.bytes, "sent_bytes": copied.sent_bytes, "seconds": copied.seconds}
            self._record("backup", update=copied.update, url=self._location.url, **values)
            send(copied=copied.update, seconds=copied.seconds)
        return True

    def _failed(self, error: Exception) -> None:
        self._waits += 1
        text = _describe(error)
        self._is_refused = isinstance(error, UsageError) or _is_refusal(error)
        # The run goes on changing while it trains: only what has failed several times is worth an event.
        if text == self._failure or (isinstance(error, UnsettledError) and self._waits < 3):
            return
        self._failure = text
        update = newest_checkpoint(self._run) or 0
        self._unrecorded = {"update": update, "url": self._location.url, "why": text}
        self._record_failure()
        consequence = "this session copies nothing more" if self._is_refused else "it is tried again"
        write_messages(
            f"note: not copied to {self._location.url}: {text}; training continues, and {consequence}",
            *([f"hint: {error.hint}"] if isinstance(error, ShoestringError) and error.hint else []),
        )

    def _record_failure(self) -> None:
        if self._unrecorded and self._run.events_file.exists():
            self._record("backup_failed", **self._unrecorded)
            self._unrecorded = {}

    def _give_up(self) -> None:
        """Say that the last checkpoint is not copied: the time of the session is used up."""
        update = newest_checkpoint(self._run) or 0
        cause = self._failure or "it was not complete within the session's time"
        self._record("backup_failed", update=update, url=self._location.url, why=cause)
        newest = "nothing" if self._copied is None else f"the checkpoint of update {self._copied}"
        write_messages(
            f"note: the last state of the run (update {update}) was not copied to {self._location.url}: {cause}; this "
            f"session has copied {newest}"
        )

    def _close(self) -> None:
        if self._store:
            self._store.close()

    def _record(self, event: str, **values: object) -> None:
        if self._run.events_file.exists():  # the session opens its record with a number of its own
            append(self._run.events_file, event, is_shared=True, **values)

    def _wait_seconds(self) -> float:
        return float(min(_LONGEST_WAIT_SECONDS, _FIRST_WAIT_SECONDS * 2 ** min(self._waits - 1, 10)))

    def _note_progress(self, _size: int) -> None:
        self._moved_at = time.monotonic()

    def _watch(self) -> None:
        """Start this process again if a request hangs: sockets of some libraries have no timeout."""
        while True:
            time.sleep(min(1.0, _SILENT_SECONDS / 4))
            silent_seconds = time.monotonic() - self._moved_at if self._is_busy else 0.0
            if self._life.end.is_set():
                if silent_seconds > _LAST_SILENT_SECONDS:
                    self._failure = f"no answer for {_LAST_SILENT_SECONDS:.0f} s"
                    self._give_up()
                    os._exit(1)
            elif silent_seconds > _SILENT_SECONDS:
                self._failed(TimeoutError(f"no answer for {_SILENT_SECONDS:.0f} s"))
                arguments = ["copy", str(self._run.path), self._location.url, self._run_id]
                self._close()
                os.execv(sys.executable, [sys.executable, "-P", "-m", "shoestring.remote.backup", *arguments])


def _is_refusal(error: Exception) -> bool:
    """Return whether the account may not write there. A folder that may not be written has an error number."""
    is_of_account = isinstance(error, KaggleError) and error.kind == "account"
    return is_of_account or (isinstance(error, PermissionError) and error.errno is None)


def _describe(error: Exception) -> str:
    if isinstance(error, ShoestringError):
        return redacted(error.message)
    if isinstance(error, OSError) and error.strerror:
        return redacted(reason(error))
    return redacted(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)[:500]
