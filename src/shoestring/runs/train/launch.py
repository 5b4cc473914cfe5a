"""Start or continue a run: load the recipe, make a plan or reopen the stored one, then train in as many processes."""

import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext

from shoestring.base import shell
from shoestring.base.errors import UsageError
from shoestring.base.settings import Settings
from shoestring.base.streams import write_messages
from shoestring.base.system_errors import explaining_below
from shoestring.base.units import bytes_text, seconds_text
from shoestring.hardware import targets
from shoestring.hardware.catalog import Target
from shoestring.planning.commands import is_sent
from shoestring.planning.plan import Plan
from shoestring.recipe.options import LoadedRecipe
from shoestring.remote.backup.processes import copying, require_elsewhere, restoring
from shoestring.runs.train.meeting import Meeting, leading
from shoestring.runs.train.parallel import on_available_gpus, process_count, train_in_ranks
from shoestring.runs.train.session import (
    LaunchRequest,
    ending_with_peers,
    local_target,
    make_stop,
    open_session,
    reopen,
)
from shoestring.runs.train.starting import import_training, start_or_continue, write_config_file
from shoestring.runs.train.supervised import write_pause
from shoestring.training.engine.parallel.launcher import Launcher
from shoestring.training.monitor.events import is_changed, read
from shoestring.training.monitor.sinks.names import of_earlier_sessions, require
from shoestring.training.monitor.sinks.processes import writing_logs
from shoestring.training.run_directory import one_run, trust
from shoestring.training.run_directory.directory import RunDirectory
from shoestring.training.run_directory.stored import StoredState, resume_command
from shoestring.training.session.outcome import Outcome
from shoestring.training.session.signals import StopSignals
from shoestring.training.session.stop import SessionOver, Stop


def launch(
    recipe: str | object, values: Mapping[str, object], request: LaunchRequest, plan: Plan | None = None
) -> Outcome:
    """Implement `shoestring.train`, with options and settings in `values`."""
    require(request.log)
    _require_backup(request)
    starting_seconds = time.monotonic() - request.started
    directory = RunDirectory(request.run)
    launcher = Launcher.find()
    if launcher:
        values = launcher.with_gpus(values)
    else:
        _require_reference(recipe, values)
    with StopSignals() as signals, explaining_below(directory.path, "the run could not use its directory"):
        target = local_target(request.on)
        stop = make_stop(request, target, signals, starting_seconds)
        if launcher and launcher.rank:
            return _follow(launcher, recipe, values, directory, target, request, stop)
        with leading(launcher, directory, stop) as announce:
            try:
                is_restored = _restore(directory, request, stop)
            except SessionOver as over:
                return _pause_without_plan(over.reason, recipe, request)
            _require_gpu(request, target, directory)
            directory.create()
            with directory.locked():
                with _naming_restored(directory, request, is_restored=is_restored):
                    prepared = _prepare(directory, recipe, values, plan, target, request, stop)
                announce(trains=not isinstance(prepared, Outcome))
                if isinstance(prepared, Outcome):
                    if prepared.status == "finished" and request.backup is not None:
                        # An earlier session may have been killed before its last checkpoint was copied.
                        with _copying(directory, request, stop):
                            pass
                    return prepared
                loaded, settings = prepared[0], on_available_gpus(prepared[1], target, joins=launcher is not None)
                count = process_count(settings, values, target)
                logs = (*request.log, *of_earlier_sessions(directory.logs))
                with (
                    _copying(directory, request, stop),
                    writing_logs(directory.events_file, directory.logs, logs),
                ):
                    if count > 1 and loaded.reference and not launcher:
                        command = _resume_command(recipe, request)
                        return train_in_ranks(loaded.reference, values, count, directory, request, stop, command)
                    joins = launcher is not None
                    try:
                        with ending_with_peers() if joins else nullcontext():
                            session = open_session(loaded, settings, directory, target, request, stop, joins=joins)
                            from shoestring.training.loop import train  # which imports torch: its allocator is chosen

                            return train(*session)
                    except SessionOver:  # the record of the session has written its end
                        return (directory.state() or StoredState()).outcome()


def _prepare(
    directory: RunDirectory,
    recipe: str | object,
    values: Mapping[str, object],
    plan: Plan | None,
    target: Target,
    request: LaunchRequest,
    stop: Stop,
) -> tuple[LoadedRecipe, Settings] | Outcome:
    """Return the recipe and the settings of the run; its outcome if it is finished, or the session is over."""
    is_new = not directory.plan_file.exists()
    try:
        with stop.interrupting():
            loaded, settings = start_or_continue(
                directory,
                recipe,
                plan,
                target,
                values,
                stop,
                allow_inexact=request.allow_inexact,
                probe=request.probe,
            )
    except SessionOver as over:
        return write_pause(directory, over.reason, _resume_command(recipe, request)).outcome()
    if is_new:
        write_config_file(
            directory,
            loaded,
            settings,
            values if plan is None else plan.settings.json(),
            on=request.on,
            limit_seconds=request.limit_seconds,
            disk_bytes=request.disk_bytes,
        )
        if request.folds > 1:
            write_messages(*_of_all_folds(directory, request.folds))
    state = _trusted_state(directory)
    if not state or state.status != "finished":
        one_run.name_run(directory.path)
        return loaded, settings
    if loaded.source and (note := trust.remember(loaded.source)):
        write_messages(f"note: {note}")
    write_messages(
        f"the run in {directory.path} is finished; see its report with: shoestring report {shell.quote(directory.path)}"
    )
    return state.outcome()


def _of_all_folds(directory: RunDirectory, folds: int) -> list[str]:
    """Return what the plan of one fold says about all of a cross-validation."""
    stored = directory.plan()
    plan = (stored.plan if stored else None) or {}
    job, disk = plan.get("job") or {}, plan.get("disk") or {}
    texts = [
        *([f"{seconds_text(folds * job['seconds'])}"] if job.get("seconds") else []),
        *([f"{bytes_text(folds * disk['peak_bytes'])} of disk"] if disk.get("peak_bytes") else []),
    ]
    return [f"all {folds} folds have this plan: together they take about {' and '.join(texts)}"] if texts else []


def _require_backup(request: LaunchRequest) -> None:
    """Raise UsageError for a place of copies that cannot be one."""
    for option, url in (("--backup", request.backup), ("--from", request.from_url)):
        require_elsewhere(RunDirectory(request.run), url, option)


def _restore(directory: RunDirectory, request: LaunchRequest, stop: Stop) -> bool:
    """Restore the run from its copies, if they are named and the directory has no run, and return whether it was.

    Raises SessionOver.
    """
    if request.from_url is None:
        return False
    was_new = not directory.plan_file.exists()
    restoring(directory, request.from_url, stop.check, backup=request.backup)
    return was_new and directory.plan_file.exists()


@contextmanager
def _naming_restored(directory: RunDirectory, request: LaunchRequest, *, is_restored: bool) -> Iterator[None]:
    """Add to the refusal of a command that it has restored a run into the directory, if it has."""
    try:
        yield
    except UsageError as error:
        if is_restored:
            error.add_note(
                f"{directory.path} has the run from {request.from_url}, which this command has restored: to begin "
                "another run there, delete it first"
            )
        raise


def _copying(directory: RunDirectory, request: LaunchRequest, stop: Stop) -> AbstractContextManager[None]:
    return copying(directory, request.backup, stop)


def _pause_without_plan(reason: str, recipe: str | object, request: LaunchRequest) -> Outcome:
    """Return the outcome of a session that was over before the run was restored; nothing is written then."""
    command = _resume_command(recipe, request)
    return StoredState(status="paused", reason=reason, next=f"{command} --from {request.from_url}").outcome()


def _follow(
    launcher: Launcher,
    recipe: str | object,
    values: Mapping[str, object],
    directory: RunDirectory,
    target: Target,
    request: LaunchRequest,
    stop: Stop,
) -> Outcome:
    """Train as another process of a launcher than the first one, which locks the directory and plans the run."""
    import_training(stop)
    meeting = Meeting(launcher, stop)
    announcement = meeting.wait()
    if announcement.trains:
        meeting.require_shared(directory, announcement)
        loaded, settings = reopen(directory, recipe, values)
        settings = on_available_gpus(settings, target, joins=True)
        try:
            with ending_with_peers():
                session = open_session(loaded, settings, directory, target, request, stop, joins=True)
                from shoestring.training.loop import train

                return train(*session)
        except SessionOver:
            pass
    return (directory.state() or StoredState()).outcome()


def _require_reference(recipe: object, values: Mapping[str, object]) -> None:
    """Raise UsageError if `values` ask for other processes, which could not load the recipe."""
    gpus = str(values.get("gpus", ""))
    if values.get("sharding") == "pipeline":  # which is one process
        return
    if not isinstance(recipe, str) and gpus.isdecimal() and int(gpus) > 1:
        raise UsageError(
            f"gpus={gpus}: the recipe is an object of this Python process, which other processes cannot load",
            hint=f"train the file of the recipe, or start this script with: torchrun --nproc-per-node {gpus} SCRIPT",
        )


def _trusted_state(directory: RunDirectory) -> StoredState | None:
    """Return the run's state; None if it has changed since a session wrote it: the newest checkpoint decides then."""
    state = directory.state()
    if state and is_changed(state.json(), read(directory.events_file)):
        write_messages(
            f"note: {directory.state_file} has changed since the last session wrote it, so the run is continued from "
            "its newest checkpoint"
        )
        return None
    return state


def _resume_command(recipe: str | object, request: LaunchRequest) -> str:
    if isinstance(recipe, str):
        return resume_command(recipe, request.run, request.on, allow_cpu=request.allow_cpu, folds=request.folds)
    return f"run the script that started {request.run} again"


def _require_gpu(request: LaunchRequest, target: Target, directory: RunDirectory) -> None:
    """Raise UsageError if the session is for a GPU and this machine has none, unless that is accepted.

    A run that was planned for this CPU goes on.
    """
    on = request.on
    if on in targets.PROBED or targets.find(on).device.kind != "cuda" or target.device.kind != "cpu":
        return
    stored = directory.plan()
    planned_for = stored.plan.get("device") if stored and stored.plan else None
    if not request.allow_cpu and planned_for != target.device.title:
        raise UsageError(
            f"--on {on}: this machine has no GPU, and its CPU would take many times as long",
            hint=("shoestring kaggle start trains on Kaggle" if is_sent(targets.find(on)) else "train where the GPU is")
            + f"; --allow-cpu trains on this CPU all the same, with the limits of {on}, and --on local without them",
        )
    write_messages(f"this machine has no GPU: training on the CPU, with the limits of {on}")
