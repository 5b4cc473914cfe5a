"""What the processes of another program's launcher agree on before they train: who plans, and on which directory.

The first process plans the run, or reopens it, and announces it; the others wait. They train only if all of them see
the directory in which the first one writes.
"""

import json
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from shoestring.base.errors import RunError, ShoestringError, UsageError
from shoestring.base.system_errors import explaining
from shoestring.training.engine.parallel.launcher import Launcher
from shoestring.training.run_directory.directory import RunDirectory
from shoestring.training.session.stop import Stop

_POLL_SECONDS = 0.1
_PATIENCE_SECONDS = 20.0
"""Less than the 30 s after which torchrun kills processes that it has asked to stop."""
_SIGHT_SECONDS = 10.0
"""For a new file to be visible to the other machines of a shared file system."""


@dataclass(frozen=True, kw_only=True)
class Announcement:
    """What the first process has decided."""

    trains: bool = True
    """Whether there is something to train: the run may be finished, and the session may be over."""
    token: str = ""
    """The name of a file that the first process has just created in the run's directory."""
    host: str = ""
    error: str = ""
    status: int = 0
    """The exit status of the first process, if it has ended with an error."""


class Meeting:
    """The connection between the processes, over the launcher's store."""

    def __init__(self, launcher: Launcher, stop: Stop) -> None:
        launcher.require_complete()
        from torch.distributed import PrefixStore  # type: ignore[attr-defined]

        from shoestring.training.engine.parallel.joining import open_store

        self._store = PrefixStore("shoestring", open_store(launcher.rank, launcher.size))
        self._launcher, self._stop = launcher, stop

    def announce(self, announcement: Announcement) -> None:
        """Tell the other processes, from the first one. If it ends now, wait for a while until they know.

        The store may be in the first process, and end with it.
        """
        self._store.set("announcement", json.dumps(vars(announcement)))
        give_up_at = time.monotonic() + _PATIENCE_SECONDS
        ranks = [] if announcement.trains and not announcement.error else range(1, self._launcher.size)
        while not all(self._store.check([f"knows {rank}"]) for rank in ranks) and time.monotonic() < give_up_at:
            time.sleep(_POLL_SECONDS)

    def wait(self) -> Announcement:
        """Return what the first process announces. Raises its error, if it has failed."""
        announcement = Announcement(**self._get("announcement"))
        if announcement.error or not announcement.trains:
            self._store.set(f"knows {self._launcher.rank}", "true")
        if announcement.status:
            kind = UsageError if announcement.status == UsageError.status else RunError
            raise kind(f"process 0: {announcement.error}")
        return announcement

    def require_shared(self, directory: RunDirectory, announcement: Announcement) -> None:
        """Raise UsageError on all processes if one of them does not see the token in the directory."""
        rank = self._launcher.rank
        self._store.set(f"sees {rank}", json.dumps(_sees(directory, announcement.token)))
        blind = [rank for rank in range(self._launcher.size) if not self._get(f"sees {rank}")]
        self._store.set(f"knows {rank}", "true")
        if rank == 0:  # the store may be in this process, and end with it
            for other in range(self._launcher.size):
                self._get(f"knows {other}")
        if blind:
            ranks = ", ".join(map(str, blind))
            raise UsageError(
                f"{directory.path} is not shared by all processes: what process 0 on {announcement.host} writes there "
                f"is not seen by process {ranks}; this one is on {socket.gethostname()}",
                hint="--run must name a directory on a file system that all machines share",
            )

    def _get(self, key: str) -> Any:
        """Wait for a value. Raises RunError if there is none for a while after a requested stop: its process has ended.

        A process that left at once would leave the others waiting for it.
        """
        give_up_at: float | None = None
        while not self._check(key):
            if give_up_at is None and self._stop.reason():
                give_up_at = time.monotonic() + _PATIENCE_SECONDS
            if give_up_at is not None and time.monotonic() > give_up_at:
                raise RunError(f"{self._stop.reason()}, before all processes of the run have started")
            time.sleep(_POLL_SECONDS)
        return json.loads(self._store.get(key))

    def _check(self, key: str) -> bool:
        try:
            return self._store.check([key])
        except RuntimeError as error:  # torch's DistNetworkError
            message = "the connection to the other processes of this run is lost: one of them has ended"
            raise RunError(message, hint="its message says why") from error


@contextmanager
def leading(launcher: Launcher | None, directory: RunDirectory, stop: Stop) -> Iterator[Callable[..., None]]:
    """Let the first process of a launcher prepare the run in the body, which calls `announce(trains=...)` afterwards.

    An error before is announced instead. `announce` raises UsageError if other processes do not see the directory.
    """
    is_announced = False

    def announce(*, trains: bool) -> None:
        nonlocal is_announced
        is_announced = True
        if launcher:
            _announce(Meeting(launcher, stop), directory, trains=trains)

    try:
        yield announce
    except ShoestringError as error:
        if launcher and not launcher.problems and not is_announced:
            Meeting(launcher, stop).announce(Announcement(error=error.message, status=error.status))
        raise


def _announce(meeting: Meeting, directory: RunDirectory, *, trains: bool) -> None:
    if not trains:
        meeting.announce(Announcement(trains=False))
        return
    token = directory.path / f".shared-{secrets.token_hex(16)}"
    with explaining(f"{token} could not be written", ", then train again"):
        token.touch(exist_ok=False)
    try:
        announcement = Announcement(token=token.name, host=socket.gethostname())
        meeting.announce(announcement)
        meeting.require_shared(directory, announcement)
    finally:
        token.unlink(missing_ok=True)


def _sees(directory: RunDirectory, token: str) -> bool:
    give_up_at = time.monotonic() + _SIGHT_SECONDS
    while not (directory.path / token).is_file():
        if time.monotonic() > give_up_at:
            return False
        time.sleep(_POLL_SECONDS)
    return True
