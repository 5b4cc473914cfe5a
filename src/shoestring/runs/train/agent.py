"""The agent: the process that starts the ranks of a run on this machine, and starts them again when one is lost.

It is torch's elastic agent with another way to end them. When one is lost, the others wait for it in a collective, and
nothing of their update can be completed: they are killed at once, and all start again from the last checkpoint. The
agent knows processes only; what is recorded about them in the run's directory is `parallel.py`.
"""

import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from signal import Signals
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.api import LogsDest, LogsSpecs
from torch.distributed.elastic.rendezvous import RendezvousInfo
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

from shoestring.base.errors import RunError, ShoestringError
from shoestring.base.running_time import RunningTime
from shoestring.base.units import seconds_text
from shoestring.training.engine.parallel.rank_channel import (
    OUT_OF_MEMORY_STATUS,
    PEER_LOST_STATUS,
    SILENCE_SECONDS,
    AgentChannel,
    Silence,
)
from shoestring.training.session.signals import StopSignals

MOST_RESTARTS = 3
"""In a session: what kills a rank four times is not an accident."""

_POLL_SECONDS = 0.1
_SETTLE_SECONDS = 5.0
"""After the first rank has left with an error, for the others to record the same one and to leave. It is less than the
10 s within which all ranks of a run are gone."""
_KILL_SECONDS = 10.0
_HASH_SEED = "PYTHONHASHSEED"
_PASSED_ON = re.compile(r"GPU [0-9]+: ")
_OUT_OF_MEMORY = "a process ran out of memory while others waited for it"
_CONSEQUENCES = (PEER_LOST_STATUS, -signal.SIGABRT)
"""How a rank ends because another one has: libraries of C++ abort."""
_CHANGED_BY_TORCH = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""torch's agent installs handlers for these signals, which raise exceptions anywhere."""


@dataclass(frozen=True, kw_only=True)
class RanksEnd:
    """How the ranks of a session have ended."""

    status: int = 0
    """0 if a rank has left with it, rank 0 after it has completed the session; the status of the rank that left with
    an error; -1 if one was lost."""
    reason: str = ""
    """Why ranks were lost, and not started again."""
    error: ShoestringError | None = None
    """The error that the first rank has reported."""
    first_to_leave: int = 0
    """The first rank that has left with status 0: before the end of the session, if that is not recorded."""


class Agent(LocalElasticAgent):
    """Starts `command` as `ranks` processes, each until all have ended.

    Each start has a job of its own, which `make_job` returns (`training/engine/parallel/rank_channel.py`).
    """

    def __init__(
        self,
        command: Sequence[str],
        ranks: int,
        make_job: Callable[[], Mapping[str, Any]],
        *,
        signals: StopSignals,
        may_restart: Callable[[], bool] = lambda: True,
        on_restart: Callable[[str, int], object] = lambda _reason, _number: None,
        grace_seconds: Callable[[], float] = lambda: 300.0,
        silence_seconds: float = SILENCE_SECONDS,
    ) -> None:
        """`on_restart(reason, number)` is called before a restart, while no rank lives. `grace_seconds` is the time
        after a requested stop within which the ranks have to end.
        """
        spec = WorkerSpec(
            role="rank",
            local_world_size=ranks,
            rdzv_handler=_Loopback(),
            entrypoint=command[0],
            args=tuple(command[1:]),
            max_restarts=MOST_RESTARTS,
            monitor_interval=0.001,  # `_monitor_workers` waits for signals instead
        )
        super().__init__(spec, _NoLogs())
        self._make_job = make_job
        self._signals, self._may_restart, self._on_restart = signals, may_restart, on_restart
        self._grace_seconds, self._silence_seconds = grace_seconds, silence_seconds
        self._channel: AgentChannel | None = None
        self._processes: dict[int, int] = {}
        self._clock = RunningTime()
        self._kill_at: float | None = None
        self.end = RanksEnd()

    def run_ranks(self) -> RanksEnd:
        """Run the ranks until they have ended for good; none of them lives then."""
        try:
            with self._signals.polled():
                self.run()
        finally:
            self._shutdown()
        return self.end

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        ranks = range(worker_group.spec.local_world_size)
        self._channel = AgentChannel({**self._make_job(), "silence_seconds": self._silence_seconds}, len(ranks))
        self._silence = Silence(ranks, self._silence_seconds)
        self._settled_at: float | None = None
        with _own_handlers(), _equal_hashes(), self._channel.as_standard_input():
            self._processes = super()._start_workers(worker_group)
        self._is_stop_forwarded = False
        return self._processes

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        assert self._channel is not None
        self._signals.poll(_POLL_SECONDS)
        self._looked_at = self._clock()
        self._forward_stop()
        silent = self._silence.update(self._channel.receive())
        ends = {rank: end for rank, pid in self._processes.items() if (end := _exit_status(pid)) is not None}
        if lost := self._lost(ends, silent):
            self._kill_ranks()
            return self._restart_or_fail(lost)
        if len(ends) == len(self._processes) or self._is_over(ends):
            self._kill_ranks()
            self._channel.receive()
            status = 0 if ends.get(0) == 0 else next(iter(_errors(ends)), 0)
            self.end = RanksEnd(
                status=status,
                error=_first_error(self._channel.errors.values()),
                first_to_leave=min((rank for rank, end in ends.items() if end == 0), default=0),
            )
            # torch's agent must not start ranks again: they would end with the same error.
            self._remaining_restarts = 0
        if self._processes:
            return RunResult(state=WorkerState.HEALTHY)
        results = dict.fromkeys(range(worker_group.spec.local_world_size))
        return RunResult(state=WorkerState.SUCCEEDED, return_values=results)

    def _shutdown(self, *_: Any, **__: Any) -> None:
        """End every rank. torch's own way is to send SIGTERM, for which a rank saves, and to wait for 30 s."""
        self._kill_ranks()
        if self._pcontext:
            self._pcontext.close(signal.SIGKILL, timeout=0)
        if self._channel:
            self._channel.close()

    def _forward_stop(self) -> None:
        """Ask the ranks once to stop. They decide together after which update."""
        if not self._signals.received or self._is_stop_forwarded:
            return
        self._is_stop_forwarded = True
        if self._kill_at is None:
            self._kill_at = self._looked_at + self._grace_seconds()
        for pid in self._processes.values():
            if _exit_status(pid) is None:
                os.kill(pid, Signals[self._signals.received])

    def _lost(self, ends: Mapping[int, int], silent: Sequence[int]) -> str:
        """Return why the ranks cannot complete the session; empty if they can, or have."""
        if ends.get(0) == 0:
            return ""  # rank 0 is the last to record the end of the session
        if OUT_OF_MEMORY_STATUS in ends.values():
            return _OUT_OF_MEMORY
        if killed := [rank for rank, status in ends.items() if status < 0 and status not in _CONSEQUENCES]:
            return "; ".join(_end_text(self._name(rank), ends[rank]) for rank in killed)
        if hanging := [rank for rank in silent if rank not in ends]:
            names = " and ".join(map(self._name, hanging))
            return f"{names} gave no sign of life for {seconds_text(self._silence_seconds)}"
        if self._kill_at is not None and self._looked_at > self._kill_at:
            return f"{self._signals.received}, and the processes did not stop in time"
        lost = [rank for rank, status in ends.items() if status in _CONSEQUENCES]
        if lost and not _errors(ends) and 0 not in ends.values() and self._have_settled(ends):
            return _end_text(self._name(lost[0]), ends[lost[0]])
        return ""

    def _is_over(self, ends: Mapping[int, int]) -> bool:
        """Return whether the ranks that have not ended yet are not waited for any more."""
        # The ranks leave together: one that has left with status 0 while others have lost it has left too early.
        has_left_early = 0 in ends.values() and any(status in _CONSEQUENCES for status in ends.values())
        return (ends.get(0) == 0 or has_left_early or bool(_errors(ends))) and self._have_settled(ends)

    def _have_settled(self, ends: Mapping[int, int]) -> bool:
        """Return whether all ranks have ended, or have had the time to do so since the first that did."""
        if self._settled_at is None:
            self._settled_at = self._looked_at + _SETTLE_SECONDS
        return len(ends) == len(self._processes) or self._looked_at > self._settled_at

    def _restart_or_fail(self, reason: str) -> RunResult:
        number = 1 + MOST_RESTARTS - self._remaining_restarts
        if reason == _OUT_OF_MEMORY:
            # Not counted: the ranks have recorded smaller sizes, until there are none. torch's agent counts each.
            number = 0
            self._remaining_restarts += 1
        if self._signals.received or not self._may_restart():
            self._remaining_restarts = 0
        if self._remaining_restarts:
            self._on_restart(reason, number)
        else:
            self.end = RanksEnd(status=-1, reason=reason)
        return RunResult(state=WorkerState.FAILED)

    def _kill_ranks(self) -> None:
        """Kill all ranks, with the processes that they have started, and wait until they have ended."""
        for pid in self._processes.values():
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        give_up_at = time.monotonic() + _KILL_SECONDS
        while remaining := [pid for pid in self._processes.values() if _exit_status(pid) is None]:
            if time.monotonic() > give_up_at:
                self._processes = {}
                pids = ", ".join(map(str, remaining))
                raise RunError(
                    f"processes of this run do not end: pid {pids}; the system cannot interrupt what they wait for",
                    hint="a GPU or a disk does not respond: restart the machine, then train again to continue",
                )
            time.sleep(0.01)
        self._processes = {}

    def _name(self, rank: int) -> str:
        return f"process {rank} of {self._worker_group.spec.local_world_size}"


class _Loopback(StaticTCPRendezvous):
    """The meeting point of the ranks of one agent: a new store for each start, which only this machine can reach."""

    def __init__(self) -> None:
        super().__init__("127.0.0.1", 0, 0, 1, run_id="shoestring", timeout=600)

    def next_rendezvous(self) -> RendezvousInfo:
        listener = socket.create_server((self.master_addr, 0))
        self.master_port = listener.getsockname()[1]
        self._store = TCPStore(
            self.master_addr,
            self.master_port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )
        return super().next_rendezvous()


class _NoLogs(LogsSpecs):
    """Ranks write to the streams of the agent, and into no files."""

    def __init__(self) -> None:
        super().__init__(log_dir=None)

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        none = dict.fromkeys(envs, "")
        return LogsDest(stdouts=none, stderrs=none, tee_stdouts={}, tee_stderrs={}, error_files=none)

    @property
    def root_log_dir(self) -> str:
        return ""


@contextmanager
def _own_handlers() -> Iterator[None]:
    """Keep the handlers of signals that the body replaces."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in _CHANGED_BY_TORCH}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


@contextmanager
def _equal_hashes() -> Iterator[None]:
    """Let the processes that are started in the body hash text alike, unless the environment has a seed for that: the
    order of a set is then the same in all of them, and in the sessions that follow.
    """
    seed = os.environ.get(_HASH_SEED)
    if seed is None or not seed.isdecimal():
        os.environ[_HASH_SEED] = "0"
    try:
        yield
    finally:
        os.environ.pop(_HASH_SEED)
        if seed is not None:
            os.environ[_HASH_SEED] = seed


def _exit_status(pid: int) -> int | None:
    """Return the status of a child that has ended, negative for a signal; None if it runs. torch's agent reaps it."""
    end = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if end is None:
        return None
    return end.si_status if end.si_code == os.CLD_EXITED else -end.si_status


def _errors(ends: Mapping[int, int]) -> list[int]:
    """Return the statuses of the ranks that have left with an error of their own."""
    return [status for status in ends.values() if status > 0 and status not in (PEER_LOST_STATUS, OUT_OF_MEMORY_STATUS)]


def _first_error(errors: Iterable[ShoestringError]) -> ShoestringError | None:
    """Return the first error that is a rank's own; those of the ranks to which it was passed on begin with its GPU."""
    return min(errors, key=lambda error: _PASSED_ON.match(error.message) is not None, default=None)


def _end_text(name: str, status: int) -> str:
    if status == PEER_LOST_STATUS:
        return f"{name} lost its connection to the others"
    number = -status
    text = Signals(number).name if number in set(Signals) else f"signal {number}"
    return f"{name} was ended by {text}" + (", which the system sends if memory runs out" if number == 9 else "")
