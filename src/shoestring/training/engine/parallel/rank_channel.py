"""The connection between the agent, which starts the ranks of a run, and each rank: a pair of sockets without a name.

The agent puts a job for each rank into the socket before it starts them with that socket as their standard input, so
that no other user can read or replace it. A rank answers with heartbeats, from a thread of its own, and with the error
that ends it.
"""

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from shoestring.base.errors import RunError, ShoestringError, UsageError
from shoestring.base.running_time import LONGEST_SECONDS, RunningTime

PEER_LOST_STATUS = 75
"""The exit status of a rank that can only end, because another one has ended: EX_TEMPFAIL of sysexits.h."""
OUT_OF_MEMORY_STATUS = 76
"""The exit status of a rank that has run out of memory while others wait for it: all start again with less."""
SILENCE_SECONDS = 60.0
"""A rank without a heartbeat for this time is dead."""

_HEARTBEATS_IN_SILENCE = 12
_JOB_SECONDS = 5.0
_MOST_BYTES = 100_000
"""Of a message: the system's limit is about 200 KB."""
_MOST_PROBLEMS = 20
_MOST_CHARACTERS = 3000
HEARTBEAT_POLL_SECONDS = LONGEST_SECONDS
"""Between two looks for heartbeats."""


class AgentChannel:
    """The agent's side, for one start of all ranks together."""

    def __init__(self, job: Mapping[str, Any], ranks: int) -> None:
        """Offer the `job`, which is JSON, to each rank."""
        self._own, self._ranks_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._own.setblocking(False)
        self.errors: dict[int, ShoestringError] = {}
        """The errors that ranks have reported, by rank, in the order of their arrival."""
        for _ in range(ranks):
            self._own.send(json.dumps({**job, "agent": os.getpid()}).encode())

    @contextmanager
    def as_standard_input(self) -> Iterator[None]:
        """Let the ranks' side be the standard input of the processes that are started in the body."""
        original = os.dup(0)
        os.dup2(self._ranks_end.fileno(), 0)
        try:
            yield
        finally:
            os.dup2(original, 0)
            os.close(original)
            self._ranks_end.close()

    def receive(self) -> set[int]:
        """Read all messages. Returns the ranks that have sent one."""
        senders = set()
        with suppress(OSError):  # BlockingIOError: there are no more; or all ranks have ended
            while message := self._own.recv(_MOST_BYTES):
                content = json.loads(message)
                senders.add(content["rank"])
                if "message" in content:
                    self.errors[content["rank"]] = _error_of(content)
        return senders

    def close(self) -> None:
        self._own.close()


class RankChannel:
    """A rank's side: its job, and the thread that sends its heartbeats."""

    def __init__(self) -> None:
        """Take the socket from the standard input, which becomes the null device, and read the job.

        Leave Python if there is none: an agent that was killed while it started this process may have taken it along,
        and then nobody would end this process.
        """
        self._socket = socket.socket(fileno=os.dup(0))
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        self._socket.settimeout(_JOB_SECONDS)  # it was sent before this process was started
        try:
            content = self._socket.recv(_MOST_BYTES)
        except OSError:
            os._exit(PEER_LOST_STATUS)
        self._socket.setblocking(True)
        self.job: dict[str, Any] = json.loads(content)
        self.rank = int(os.environ["RANK"])

    def start_heartbeats(self) -> None:
        """Send a heartbeat now and, from a thread, several in each time of silence after which a rank is dead."""
        seconds = self.job.get("silence_seconds", SILENCE_SECONDS) / _HEARTBEATS_IN_SILENCE
        start_heartbeats(self._socket, json.dumps({"rank": self.rank}).encode(), seconds)

    def report(self, error: ShoestringError, notes: Iterable[str] = ()) -> None:
        """Tell the agent the error with which this rank ends."""
        content = {
            "rank": self.rank,
            "status": error.status,
            "message": error.message[:_MOST_CHARACTERS],
            "problems": [problem[:_MOST_CHARACTERS] for problem in error.problems[:_MOST_PROBLEMS]],
            "hint": error.hint,
            "notes": list(notes),
        }
        self._socket.settimeout(1)
        with suppress(OSError):
            self._socket.send(json.dumps(content).encode())


class Silence:
    """How long processes have been silent. Only time in which this process itself ran counts: after a machine or this
    process was stopped for minutes, the others are not dead.
    """

    def __init__(self, processes: Iterable[int], limit_seconds: float) -> None:
        self._limit_seconds = limit_seconds
        self._seconds = dict.fromkeys(processes, 0.0)
        self._clock, self._updated_at = RunningTime(), 0.0

    def update(self, heard: Iterable[int]) -> list[int]:
        """Note the processes that were heard since the last call. Returns those that have been silent too long."""
        before, self._updated_at = self._updated_at, self._clock()
        tick = self._updated_at - before
        for process in self._seconds:
            self._seconds[process] = 0.0 if process in heard else self._seconds[process] + tick
        return [process for process, seconds in self._seconds.items() if seconds > self._limit_seconds]


class Heartbeats:
    """The heartbeats of one process that this one forks."""

    def __init__(self, silence_seconds: float) -> None:
        self._own, self._childs_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._own.setblocking(False)
        self._seconds = silence_seconds
        self._silence = Silence([0], silence_seconds)

    def start(self) -> None:
        """Send heartbeats from the child."""
        start_heartbeats(self._childs_end, b"alive", self._seconds / _HEARTBEATS_IN_SILENCE)

    def are_missing(self) -> bool:
        """Return whether the child is dead."""
        heard = []
        with suppress(OSError):
            while self._own.recv(_MOST_BYTES):
                heard = [0]
        return bool(self._silence.update(heard))

    def close(self) -> None:
        self._own.close()
        self._childs_end.close()


def start_heartbeats(connection: socket.socket, message: bytes, seconds: float) -> None:
    """Send the message now, and then every so many `seconds` from a thread."""

    def send() -> None:
        # With a full queue the other side does not read, and later messages will do. If it has ended, so will this one.
        with suppress(OSError):
            connection.send(message, socket.MSG_DONTWAIT)

    def repeat() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # signals are for the main thread
        while True:
            time.sleep(seconds)
            send()

    send()
    threading.Thread(target=repeat, name="heartbeats", daemon=True).start()


def _error_of(content: Mapping[str, Any]) -> ShoestringError:
    kind = UsageError if content["status"] == UsageError.status else RunError
    error = kind(content["message"], problems=content["problems"], hint=content["hint"])
    for note in content["notes"]:
        error.add_note(note)
    return error
