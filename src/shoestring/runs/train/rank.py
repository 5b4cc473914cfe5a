"""One of the processes that train a run together on this machine: `python -m shoestring.runs.train.rank`.

The agent starts it with a job on its standard input (`training/engine/parallel/rank_channel.py`). It reopens the run,
whose plan is stored, as a session that continues it does.
"""

import os
import sys
import time
import traceback
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NoReturn

from shoestring.base import failures
from shoestring.base.errors import ShoestringError
from shoestring.base.packages.quiet import quiet_bitsandbytes
from shoestring.base.processes import exit_with_parent, started_at
from shoestring.base.streams import SilentStream, usable
from shoestring.runs.train.supervisor import leave
from shoestring.training.engine.parallel.rank_channel import RankChannel
from shoestring.training.session.signals import StopSignals


def main() -> NoReturn:
    """Train and leave, with the status of a command that trains in one process."""
    quiet_bitsandbytes()
    channel = RankChannel()
    channel.start_heartbeats()
    exit_with_parent(channel.job["agent"])
    StopSignals.is_supervised = True
    status = 1
    try:
        with usable(), _speaking(is_first=channel.rank == 0):
            status = _status(channel)
    finally:
        leave(status)


def _speaking(*, is_first: bool) -> ExitStack:
    """Return a context in which only the first process prints: what the others print is the same."""
    stack = ExitStack()
    if not is_first:
        stack.enter_context(redirect_stdout(SilentStream()))
        stack.enter_context(redirect_stderr(SilentStream()))
    return stack


def _status(channel: RankChannel) -> int:
    """Train, and return the exit status. An error is reported to the agent, which prints it."""
    try:
        return _train(channel.job)
    except ShoestringError as error:
        return _report(channel, error, error)
    except Exception as error:  # noqa: BLE001  (the recipe's code may raise anything)
        return _report(channel, failures.describe(error), error)


def _report(channel: RankChannel, message: ShoestringError, error: Exception) -> int:
    if os.environ.get(failures.TRACEBACK_VARIABLE):
        traceback.print_exception(error, file=sys.__stderr__)
    channel.report(message, getattr(error, "__notes__", ()))
    return message.status


def _train(job: dict[str, Any]) -> int:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # all ranks of an agent are on this machine
    sys.path[:] = job["path"]  # the recipe imports here what it can import in the agent
    from shoestring.runs.train.session import (
        LaunchRequest,
        ending_with_peers,
        local_target,
        make_stop,
        open_session,
        reopen,
    )
    from shoestring.training.run_directory.directory import RunDirectory
    from shoestring.training.session.stop import SessionOver

    names = ("on", "limit_seconds", "disk_bytes", "started", "allow_inexact", "folds")
    request = LaunchRequest(run=Path(job["run"]), **{name: job[name] for name in names})
    directory = RunDirectory(request.run)
    with StopSignals() as signals:
        target = local_target(request.on)
        if target.device.kind == "cpu":  # processes with more threads than cores slow each other down
            os.environ["OMP_NUM_THREADS"] = "1"
        stop = make_stop(request, target, signals, time.monotonic() - started_at())
        # A stop is not an end here: a rank that ended alone would leave the others waiting. They decide once connected.
        loaded, settings = reopen(directory, job["recipe"], job["values"])
        try:
            with ending_with_peers(on_lost=lambda _: None):  # the agent knows better why another rank has ended
                session = open_session(loaded, settings, directory, target, request, stop, joins=True)
                from shoestring.training.loop import train

                train(*session)
        except SessionOver:  # the record of the session has written its end
            return 0
    return 0


if __name__ == "__main__":
    main()
