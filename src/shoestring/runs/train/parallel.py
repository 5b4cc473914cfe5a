"""A session in several processes of this machine: the agent's side, which records what happens to each of them."""

import sys
import time
from collections.abc import Mapping
from typing import Any

from shoestring.base import config
from shoestring.base.errors import RunError, UsageError
from shoestring.base.settings import Settings
from shoestring.base.streams import write_messages
from shoestring.hardware.catalog import Target
from shoestring.runs.train.session import LaunchRequest
from shoestring.runs.train.supervised import left_early, newest_update, write_pause, write_state
from shoestring.training.monitor.events import append, read
from shoestring.training.run_directory.directory import RunDirectory
from shoestring.training.run_directory.stored import StoredState
from shoestring.training.session.ledger import slowest_durations
from shoestring.training.session.outcome import Outcome
from shoestring.training.session.stop import Stop

_LEAST_GRACE_SECONDS = 300.0
_COMMAND = (sys.executable, "-P", "-m", "shoestring.runs.train.rank")


def on_available_gpus(settings: Settings, target: Target, *, joins: bool = False) -> Settings:
    """Return the settings of a session on this machine: a model that is divided between two GPUs is on one GPU if there
    is no second one, with the same bits if it fits there.

    Raises UsageError if this process is one of several that a launcher has started and that `joins` them.
    """
    if not settings.is_pipeline:
        return settings
    if joins:
        raise UsageError(
            "sharding=pipeline: a launcher has started several processes, and one process uses both GPUs",
            hint="start shoestring train without the launcher, or set sharding=zero3, which divides each weight",
        )
    if target.gpus >= 2:
        return settings
    write_messages("sharding=pipeline: this machine has no second GPU, so the whole model is on one device")
    return settings.replace(gpus=1)


def process_count(settings: Settings, values: Mapping[str, object], target: Target) -> int:
    """Return the number of processes of a session: the one that is set in `values`, else that of the run as far as
    there are GPUs for them.
    """
    gpus = settings.processes
    if "gpus" in values:
        return gpus
    return min(gpus, 1 << (target.processes.bit_length() - 1))  # a power of two


def train_in_ranks(
    reference: str,
    values: Mapping[str, object],
    count: int,
    directory: RunDirectory,
    request: LaunchRequest,
    stop: Stop,
    resume_command: str,
) -> Outcome:
    """Train in `count` processes, which reopen the run, whose plan is stored, with the recipe at `reference`.

    Raises the error of the process that has reported one; RunError if processes are lost again and again.
    """
    from shoestring.runs.train.agent import MOST_RESTARTS, Agent

    started, limit_seconds = request.started, stop.deadline.limit_seconds

    def make_job() -> dict[str, Any]:
        """Return what the ranks train. For the record, ranks that are started again are another, shorter session."""
        elapsed = started - request.started
        return {
            "recipe": reference,
            "values": config.as_json({**values, "gpus": count}),
            "path": sys.path,
            "run": str(request.run),
            "on": request.on,
            "limit_seconds": None if limit_seconds is None else limit_seconds - elapsed,
            "disk_bytes": request.disk_bytes,
            "started": started,
            "allow_inexact": request.allow_inexact,
            "folds": request.folds,
        }

    def on_restart(reason: str, number: int) -> None:
        nonlocal started
        started = time.monotonic()
        update = newest_update(directory.checkpoints)
        append(directory.events_file, "restart", update=update, reason=reason, number=number)
        write_messages(
            f"{reason}: all {count} processes start again from update {update}; "
            + (f"restart {number} of at most {MOST_RESTARTS} in a session" if number else "with less memory")
        )

    def grace_seconds() -> float:
        """Return the time for the work in progress and the save that follows it, generously."""
        return max(_LEAST_GRACE_SECONDS, 3 * sum(slowest_durations(read(directory.events_file)).values()))

    state_before = directory.state()
    end = Agent(
        _COMMAND,
        count,
        make_job,
        signals=stop.signals,
        may_restart=lambda: stop.reason() is None,
        on_restart=on_restart,
        grace_seconds=grace_seconds,
    ).run_ranks()
    state = directory.state()
    is_recorded = state is not None and state != state_before and state.status != "running"
    if end.status == 0:
        if not is_recorded and (reason := stop.reason()):
            state = write_pause(directory, reason, resume_command)
        elif not is_recorded:
            raise left_early(f"process {end.first_to_leave} of {count}", directory, resume_command)
        return (state or StoredState()).outcome()
    if end.status < 0 and (reason := stop.reason()):
        return write_pause(directory, f"{reason}; {end.reason}", resume_command).outcome()
    if end.status < 0:
        state = write_state(directory, "failed", end.reason, resume_command)
        raise RunError(
            f"{end.reason}, after {MOST_RESTARTS} restarts in this session",
            hint=f"train again to continue from update {state.update}: {state.next}",
        )
    error = end.error or RunError(f"a process of this run left with status {end.status} without an error")
    if not is_recorded:
        write_state(directory, "failed", error.message, resume_command)
    raise error
