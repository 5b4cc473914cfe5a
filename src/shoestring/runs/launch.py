"""Start or continue a run: load the recipe, make a plan or reopen the stored one, then train."""

import dataclasses
import importlib
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoestring.checkpoint.files import remove
from shoestring.errors import RunError, TraceError, UsageError
from shoestring.hardware import targets
from shoestring.hardware.catalog import Target
from shoestring.monitor.events import is_changed, read
from shoestring.plan.plan import Plan, make_plan
from shoestring.recipe.contract import require_data
from shoestring.recipe.finding import choose
from shoestring.recipe.near_misses import find_near_misses
from shoestring.recipe.options import LoadedRecipe
from shoestring.recipe.whole_batch import require_whole_batch
from shoestring.runs.supervised import session_seconds, write_pause
from shoestring.runs.untraced import plan_by_trying, require_certain
from shoestring.session import trust
from shoestring.session.deadline import Deadline
from shoestring.session.directory import RunDirectory
from shoestring.session.outcome import Outcome
from shoestring.session.signals import StopSignals
from shoestring.session.stop import SessionOver, Stop
from shoestring.session.stored import StoredPlan, StoredState, resume_command
from shoestring.settings import Settings
from shoestring.streams import write_messages
from shoestring.system_errors import explaining
from shoestring.techniques.trainable import require_trainable
from shoestring.trace import StoredTraces
from shoestring.units import bytes_text


@dataclass(frozen=True, kw_only=True)
class LaunchRequest:
    """The directory of a run, its target and the limits of its session."""

    run: Path
    on: str = "local"
    """The target whose platform's limits apply."""
    limit_seconds: float | None = None
    """The limit of this session, in place of the platform's."""
    disk_bytes: int | None = None
    """The limit of the run's directory, in place of the platform's."""
    started: float = field(default_factory=time.monotonic)
    """The start of the session by `time.monotonic()`; planning counts as part of the session."""
    allow_inexact: bool = False
    """Continue with other versions, hardware or settings."""


def launch(
    recipe: str | object, values: Mapping[str, object], request: LaunchRequest, plan: Plan | None = None
) -> Outcome:
    """Implement `shoestring.train`, with options and settings in `values`."""
    starting_seconds = time.monotonic() - request.started
    directory = RunDirectory(request.run)
    with StopSignals() as signals:
        target = _local_target(request.on)
        limit_seconds = session_seconds(target.platform, request.limit_seconds)
        stop = Stop(deadline=Deadline(limit_seconds, started=request.started), signals=signals)
        stop.deadline.reserve(starting_seconds)
        directory.create()
        with directory.locked():
            try:
                with stop.interrupting():
                    loaded, settings = _start_or_continue(directory, recipe, plan, target, values, request, stop)
            except SessionOver as over:
                return write_pause(directory, over.reason, _resume_command(recipe, request)).outcome()
            state = _trusted_state(directory)
            if state and state.status == "finished":
                if loaded.source and (note := trust.remember(loaded.source)):
                    write_messages(f"note: {note}")
                write_messages(
                    f"the run in {directory.path} is finished; see its report with: shoestring report {directory.path}"
                )
                return state.outcome()
            try:
                return _train(loaded, settings, directory, target, request, stop)
            except SessionOver:  # the record of the session has written its end
                return (directory.state() or StoredState()).outcome()


def _trusted_state(directory: RunDirectory) -> StoredState | None:
    """Return the run's state; None if it has changed since a session wrote it: the newest checkpoint decides then."""
    state = directory.state()
    if state and is_changed(dataclasses.asdict(state), read(directory.events_file)):
        write_messages(
            f"note: {directory.state_file} has changed since the last session wrote it, so the run is continued from "
            "its newest checkpoint"
        )
        return None
    return state


def _resume_command(recipe: str | object, request: LaunchRequest) -> str:
    if isinstance(recipe, str):
        return resume_command(recipe, request.run, request.on)
    return f"run the script that started {request.run} again"


def _local_target(on: str) -> Target:
    """Return this machine as a target, with the limits of the platform of `on`."""
    target = targets.find(on)
    if on in targets.PROBED:
        return target
    local = targets.find("local")
    if target.device.kind == "cuda" and local.device.kind == "cpu":
        write_messages(f"this machine has no GPU: training on the CPU, with the limits of {on}")
    return dataclasses.replace(local, platform=target.platform)


def _start_or_continue(
    directory: RunDirectory,
    recipe: str | object,
    plan: Plan | None,
    target: Target,
    values: Mapping[str, object],
    request: LaunchRequest,
    stop: Stop,
) -> tuple[LoadedRecipe, Settings]:
    """Return the recipe and the settings of a new run, or of the run in `directory`."""
    stored = directory.plan()
    if stored is None:
        return _start_run(directory, recipe, plan, target, values, stop)
    if stored.is_result_changed and not request.allow_inexact:
        raise UsageError(
            f"{directory.plan_file} has changed since it was written: its digest does not match its content",
            hint="copy the run again from its source; if you have changed the file on purpose, continue with "
            "--allow-inexact",
        )
    return _continue_run(stored, directory, recipe, values)


def _start_run(
    directory: RunDirectory,
    recipe: str | object,
    plan: Plan | None,
    target: Target,
    values: Mapping[str, object],
    stop: Stop,
) -> tuple[LoadedRecipe, Settings]:
    """Plan a new run unless `plan` is for this device, and write its plan.json.

    A run whose update cannot be traced has a plan that was measured.
    """
    if plan is not None:
        plan_options = {name: value for name, value in plan.options.items() if name not in values}
        loaded, settings = choose(recipe, {**plan_options, **values})
    else:
        loaded, settings = choose(recipe, values)
    require_data(loaded.recipe)
    require_trainable(settings, loaded.adaptation)
    require_whole_batch(loaded, settings)
    if plan is None or plan.target.device.name != target.device.name:
        if target.device.kind == "cpu":  # on a GPU the plan's allocator has to be known before torch is imported
            # The child process that traces the update inherits the imported modules.
            _import_training(stop)
        try:
            new_plan = make_plan(loaded, target, settings, stored=StoredTraces(directory.planning_file, loaded))
            require_certain(new_plan)
        except TraceError as error:
            settings, measured_plan = plan_by_trying(loaded, target, settings, error, stop.deadline)
            _store_plan(directory, loaded, measured_plan)
            return loaded, settings
        if plan is not None:
            write_messages(_describe_replanning(plan, new_plan))
        plan = new_plan
    if not plan.fits:
        raise RunError(
            f"{plan.recipe} does not fit {target.device.title}",
            problems=plan.reasons,
            hint="choose other settings or options; shoestring plan shows which ones fit",
        )
    _store_plan(directory, loaded, plan.json())
    return loaded, plan.settings


def _store_plan(directory: RunDirectory, loaded: LoadedRecipe, plan: Mapping[str, Any]) -> None:
    with explaining(f"{directory.plan_file} could not be written", ", then train again"):
        StoredPlan.from_recipe(loaded, plan).write(directory.plan_file)
    remove(directory.planning_file)


def _import_training(stop: Stop) -> None:
    """Import torch and the training loop. What that takes is the measure of other imports and of leaving Python."""
    started = time.monotonic()
    importlib.import_module("shoestring.train.loop")
    stop.deadline.reserve(time.monotonic() - started)


def _continue_run(
    stored: StoredPlan, directory: RunDirectory, recipe: str | object, values: Mapping[str, object]
) -> tuple[LoadedRecipe, Settings]:
    """Return the run's recipe with its stored options, and its settings updated with `values`."""
    reopened = stored.reopen(directory.plan_file, values, recipe)
    loaded, stored_recipe = reopened.loaded, reopened.stored
    changed = [
        f"{name}: the run was started with {stored_recipe.options[name]}, but {value} was requested"
        for name, value in loaded.options.items()
        if value != stored_recipe.options[name] and name not in loaded.paths
    ]
    if changed:
        raise UsageError(
            f"the options of the run in {directory.path} cannot be changed",
            problems=changed,
            hint="they change the training result: start another run with another --run",
        )
    require_trainable(reopened.settings, loaded.adaptation)
    if names := ", ".join(find_near_misses(type(loaded.recipe))):
        write_messages(f"note: these names of {loaded.name} are ignored, as since the run was started: {names}")
    require_whole_batch(loaded, reopened.settings)
    return loaded, reopened.settings


def _train(
    loaded: LoadedRecipe,
    settings: Settings,
    directory: RunDirectory,
    target: Target,
    request: LaunchRequest,
    stop: Stop,
) -> Outcome:
    if settings.allocator == "expandable" and target.device.kind == "cuda":
        _enable_expandable_segments()
    _import_training(stop)
    import torch

    from shoestring.engine.parallel.ranks import Ranks
    from shoestring.train.loop import train
    from shoestring.train.request import SessionRequest

    library = None
    if loaded.parts.trainer:
        from shoestring.integrations.library import LibraryUpdates

        library = LibraryUpdates()
    device = torch.device(target.device.kind)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(
            f"this machine has {target.device.title}, but this torch ({torch.__version__}) cannot use it",
            hint="install a CUDA build of torch for its driver, or train with --on cpu",
        )
    disk_bytes = request.disk_bytes
    if disk_bytes is None and target.platform:  # the platform's present limit
        disk_bytes = target.platform.disk_bytes
    session = SessionRequest(
        loaded=loaded,
        settings=settings,
        run=directory,
        target=request.on,
        device=device,
        stop=stop,
        disk_bytes=disk_bytes,
        allow_inexact=request.allow_inexact,
        ranks=Ranks.join(),
    )
    return train(session, library)


def _enable_expandable_segments() -> None:
    """Make torch's CUDA allocator use expandable segments; it reads the environment variable when it starts."""
    variable, option = "PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"
    value = os.environ.get(variable)
    if value and option in value:
        return
    os.environ[variable] = f"{value},{option}" if value else option
    if "torch" in sys.modules:
        write_messages(
            "torch was imported before allocator=expandable was set; if it has no effect, set "
            f"{variable}={option} in the environment"
        )


def _describe_replanning(old: Plan, new: Plan) -> str:
    """Return a message with the differences between a plan for another device and the one for this device."""
    old_settings, new_settings = old.settings.json(), new.settings.json()
    changes = [
        f"{name} {old_settings[name]} -> {new_settings[name]}"
        for name in old_settings
        if old_settings[name] != new_settings[name]
    ]
    return (
        f"the plan is for {old.target.device.title}, but this machine has {new.target.device.title}: made a new plan "
        f"with the same effective batch; {', '.join(changes) or 'the settings are the same'}; memory "
        f"{bytes_text(old.memory.peak_bytes)} -> {bytes_text(new.memory.peak_bytes)}"
    )
