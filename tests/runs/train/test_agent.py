"""The agent and the ranks that it starts. The ranks are small programs that need no torch."""

import os
import signal
import sys
import threading
import time

import psutil
import pytest

from shoestring.base.errors import UsageError
from shoestring.runs.train import agent
from shoestring.runs.train.supervisor import supervise
from shoestring.training.session.signals import StopSignals

RANK = """
import os, signal, sys, time
from pathlib import Path
from shoestring.training.engine.parallel.rank_channel import RankChannel

channel = RankChannel()
rank, start = channel.rank, int(os.environ["TORCHELASTIC_RESTART_COUNT"])
folder = Path(channel.job["folder"])
channel.start_heartbeats()
{program}
"""

HANG = "time.sleep(600)"


@pytest.fixture
def run_ranks(tmp_path):
    def run(program, ranks=2, **options):
        """Return how the ranks ended, the reasons of the restarts, and the names of the files that ranks wrote."""
        restarts = []

        def on_restart(reason, number):
            restarts.append(f"{number}: {reason}")
            assert {child.status() for child in psutil.Process().children()} <= {psutil.STATUS_ZOMBIE}

        with StopSignals() as signals:
            command = [sys.executable, "-c", RANK.format(program=program)]
            end = agent.Agent(
                command, ranks, lambda: {"folder": str(tmp_path)}, signals=signals, on_restart=on_restart, **options
            ).run_ranks()
        return end, restarts, {path.name for path in tmp_path.iterdir()}

    return run


def test_ranks_get_the_job_and_their_places(run_ranks):
    program = "names = f'{rank} of {os.environ[\"WORLD_SIZE\"]}', '-'.join({'a', 'b', 'c', 'd', 'e', 'f'})\n"
    end, restarts, files = run_ranks(program + "for name in names:\n    (folder / name).touch()")
    assert (end, restarts) == (agent.RanksEnd(), [])
    assert files > {"0 of 2", "1 of 2"}
    assert len(files) == 3  # sets have the same order in all processes
    assert "PYTHONHASHSEED" not in os.environ


def test_death_by_a_signal_starts_all_ranks_again(run_ranks):
    kill = "os.kill(os.getpid(), signal.SIGKILL)"
    end, restarts, files = run_ranks(f"""
(folder / f"{{rank}} {{start}}").touch()
if start < 2:
    {kill} if rank == 1 else {HANG}
""")
    reason = "process 1 of 2 was ended by SIGKILL, which the system sends if memory runs out"
    assert (end, restarts) == (agent.RanksEnd(), [f"1: {reason}", f"2: {reason}"])
    assert {f"{rank} 2" for rank in range(2)} <= files
    end, restarts, _ = run_ranks(f"{kill} if rank else {HANG}")
    assert (end.status, end.reason, len(restarts)) == (-1, reason, 3)


def test_reported_error_ends_all_ranks_for_good(run_ranks, monkeypatch):
    monkeypatch.setattr(agent, "_SETTLE_SECONDS", 0.3)
    end, restarts, _ = run_ranks(f"""
from shoestring.base.errors import UsageError
if rank == 1:
    channel.report(UsageError("no data", problems=["line 3"], hint="add some"), ["a note"])
    sys.exit(2)
{HANG}
""")
    assert (end.status, restarts) == (2, [])
    assert isinstance(end.error, UsageError)
    assert (str(end.error), end.error.__notes__) == ("no data\n  - line 3\nhint: add some", ["a note"])


def test_rank_that_has_lost_the_others_is_no_error(run_ranks, monkeypatch):
    """Another rank is the reason, if it has one."""
    end, restarts, _ = run_ranks("sys.exit(75 if rank and not start else 0)")
    assert (end.status, restarts) == (0, [])
    end, restarts, _ = run_ranks("os.abort() if rank else time.sleep(0.2); sys.exit(1)")
    assert (end.status, restarts) == (1, [])
    monkeypatch.setattr(agent, "_SETTLE_SECONDS", 0.3)
    end, restarts, _ = run_ranks(f"sys.exit(75) if rank and not start else start or {HANG}")
    assert (end.status, restarts) == (0, ["1: process 1 of 2 lost its connection to the others"])


def test_rank_that_leaves_too_early_is_not_started_again(run_ranks):
    end, restarts, _ = run_ranks("time.sleep(0.1 * (rank == 0)); os._exit(0 if rank else 75)")
    assert (end, restarts) == (agent.RanksEnd(status=0, first_to_leave=1), [])


def test_restart_after_out_of_memory_is_not_counted(run_ranks):
    """Each time with less memory, until it suffices."""
    end, restarts, _ = run_ranks("""
if rank:
    count = len(list(folder.iterdir()))
    (folder / str(count)).touch()
    sys.exit(76 if count < 5 else 0)
while not (folder / "5").exists():
    time.sleep(0.01)
""")
    assert (end.status, restarts) == (0, ["0: a process ran out of memory while others waited for it"] * 5)


def test_rank_without_heartbeats_is_dead(run_ranks):
    """A stopped process cannot be ended by SIGTERM either."""
    stop = "os.kill(os.getpid(), signal.SIGSTOP)"
    end, restarts, _ = run_ranks(f"start or ({stop} if rank else {HANG})", silence_seconds=0.6)
    assert (end.status, restarts) == (0, ["1: process 1 of 2 gave no sign of life for 600 ms"])


def test_stop_is_forwarded_once(run_ranks, tmp_path):
    def send():
        while len(list(tmp_path.iterdir())) < 2:
            time.sleep(0.01)
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.2)

    threading.Thread(target=send).start()
    end, restarts, files = run_ranks("""
from shoestring.training.session.signals import StopSignals
received = []
with StopSignals() as signals:
    signal.signal(signal.SIGINT, lambda *_: received.append(1))
    (folder / str(rank)).touch()
    while not received:
        time.sleep(0.01)
    time.sleep(0.5)
(folder / f"{rank} {len(received)}").touch()
""")
    assert (end, restarts, files) == (agent.RanksEnd(), [], {"0", "1", "0 1", "1 1"})


def test_ranks_that_do_not_stop_are_killed_and_not_started_again(run_ranks):
    threading.Timer(0.4, os.kill, [os.getpid(), signal.SIGTERM]).start()
    end, restarts, _ = run_ranks(HANG, grace_seconds=lambda: 0.3)
    assert (end.status, end.reason, restarts) == (-1, "SIGTERM, and the processes did not stop in time", [])


def supervised_ranks(program, folder, limit):
    """Fork a supervisor of an agent of two ranks, and return its process id. It exits with 7 at the limit."""

    def work():
        with StopSignals() as signals:
            agent.Agent(
                [sys.executable, "-c", program], 2, lambda: {"folder": str(folder)}, signals=signals
            ).run_ranks()
        return 0

    pid = os.fork()
    if not pid:
        try:
            os._exit(7 if supervise(work, time.monotonic() + limit).at_limit else 8)
        finally:
            os._exit(9)
    return pid


@pytest.mark.parametrize("limit", [1.5, 60.0])
def test_all_processes_end_with_the_supervisor(tmp_path, limit):
    rank = f"""
from shoestring.base.processes import exit_with_parent
exit_with_parent(channel.job["agent"])
(folder / f"{{rank}}.part").write_text(f"{{os.getpid()}} {{os.getppid()}}")
(folder / f"{{rank}}.part").rename(folder / f"{{rank}}.{{start}}")
{HANG}
"""
    supervisor = supervised_ranks(RANK.format(program=rank), tmp_path, limit)
    while len(list(tmp_path.glob("?.0"))) < 2:
        time.sleep(0.01)
    pids = {int(pid) for path in tmp_path.glob("?.0") for pid in path.read_text().split()}
    processes = [psutil.Process(pid) for pid in pids]
    if limit == 60.0:
        os.kill(supervisor, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(supervisor, 0)[1]) == (7 if limit == 1.5 else -signal.SIGKILL)
    assert len(processes) == 3
    assert psutil.wait_procs(processes, timeout=10)[1] == []
    assert {path.name for path in tmp_path.iterdir()} == {"0.0", "1.0"}  # nothing was started again
