"""A run's recipe and settings: from a new plan, which is stored in its directory, or from the stored one."""

import importlib
import time
from collections.abc import Container, Mapping
from typing import Any

from shoestring.base import config
from shoestring.base.errors import RunError, TraceError, UsageError
from shoestring.base.processes import limit_spinning
from shoestring.base.settings import Settings
from shoestring.base.streams import write_messages
from shoestring.base.system_errors import explaining
from shoestring.base.units import bytes_text
from shoestring.hardware.catalog import Target
from shoestring.planning.commands import plan_command
from shoestring.planning.plan import Plan
from shoestring.planning.planner import make_plan
from shoestring.planning.trace import StoredTraces
from shoestring.planning.weight_type import with_weight_type
from shoestring.recipe.finding import choose
from shoestring.recipe.near_misses import find_near_misses
from shoestring.recipe.options import LoadedRecipe
from shoestring.recipe.whole_batch import require_whole_batch
from shoestring.runs.check.probe.probing import is_enabled, measured_plan
from shoestring.runs.train.untraced import plan_by_trying, require_certain
from shoestring.techniques.trainable import require_trainable
from shoestring.training.checkpoint.files import remove_own
from shoestring.training.checkpoint.identity import new_id
from shoestring.training.run_directory.config_file import write_config
from shoestring.training.run_directory.contents import OWN
from shoestring.training.run_directory.directory import RunDirectory
from shoestring.training.run_directory.stored import StoredPlan
from shoestring.training.session.stop import Stop

_PROBE_SHARE = 1 / 3
"""The largest share of the remaining session that a probe takes."""


def start_or_continue(
    directory: RunDirectory,
    recipe: str | object,
    plan: Plan | None,
    target: Target,
    values: Mapping[str, object],
    stop: Stop,
    *,
    allow_inexact: bool,
    probe: bool | None = None,
) -> tuple[LoadedRecipe, Settings]:
    """Return the recipe and the settings of a new run, whose plan is measured if `probe` allows it, or of the run in
    `directory`.
    """
    stored = directory.plan()
    if stored is None:
        return _start_run(directory, recipe, plan, target, values, stop, probe=probe)
    if stored.is_result_changed and not allow_inexact:
        raise UsageError(
            f"{directory.plan_file} has changed since it was written: its digest does not match its content",
            hint="copy the run again from its source; if you have changed the file on purpose, continue with "
            "--allow-inexact",
        )
    loaded, settings = continue_run(stored, directory, recipe, values)
    if names := ", ".join(find_near_misses(type(loaded.recipe))):
        write_messages(f"note: these names of {loaded.name} are ignored, as since the run was started: {names}")
    return loaded, settings


def _start_run(
    directory: RunDirectory,
    recipe: str | object,
    plan: Plan | None,
    target: Target,
    values: Mapping[str, object],
    stop: Stop,
    *,
    probe: bool | None,
) -> tuple[LoadedRecipe, Settings]:
    """Plan a new run unless `plan` is for this device, measure the plan, and write its plan.json.

    Until then nothing of the run is stored: after a kill during the probe, the same command begins again. A run whose
    update cannot be traced has a plan that was found by trying.
    """
    if plan is not None:
        plan_options = {name: value for name, value in plan.options.items() if name not in values}
        loaded, settings = choose(recipe, {**plan_options, **values})
    else:
        loaded, settings = choose(recipe, values)
    loaded = with_weight_type(loaded, target, settings)
    loaded.require_real_data()
    require_trainable(settings, loaded.adaptation)
    require_whole_batch(loaded, settings)
    # Other processes could not load the recipe.
    if not loaded.reference and settings.gpus is None and not settings.is_pipeline:
        settings = settings.replace(gpus=1)
    if settings.gpus and settings.logical_shards is None:
        settings = settings.replace(logical_shards=settings.processes)
    if plan is None or plan.target.device.name != target.device.name:
        if target.device.kind == "cpu":  # on a GPU the plan's allocator has to be known before torch is imported
            # The child process that traces the update inherits the imported modules.
            import_training(stop)
        try:
            new_plan = make_plan(loaded, target, settings, stored=StoredTraces(directory.planning_file, loaded))
            require_certain(new_plan)
        except TraceError as error:
            settings, tried_plan = plan_by_trying(loaded, target, settings, error, stop.deadline)
            _store_plan(directory, loaded, tried_plan)
            return loaded, settings
        if plan is not None:
            write_messages(_describe_replanning(plan, new_plan))
        plan = new_plan
    if not plan.fits:
        raise RunError(
            f"{plan.recipe} does not fit {target.device.title}",
            problems=plan.changes,
            hint=f"see {plan_command(loaded, settings, target, {})}",
        )
    if is_enabled(probe) and plan.measured is None:
        remaining = stop.deadline.remaining()
        available = None if remaining is None else _PROBE_SHARE * remaining
        plan = measured_plan(plan, loaded, settings, available_seconds=available, trains_here=True)
    _store_plan(directory, loaded, plan.json())
    return loaded, plan.settings


def _store_plan(directory: RunDirectory, loaded: LoadedRecipe, plan: Mapping[str, Any]) -> None:
    with explaining(f"{directory.plan_file} could not be written", ", then train again"):
        StoredPlan.from_recipe(loaded, plan, run=new_id()).write(directory.plan_file)
    remove_own(directory.planning_file, OWN)


def write_config_file(
    directory: RunDirectory,
    loaded: LoadedRecipe,
    settings: Settings,
    names: Container[str],
    *,
    on: str,
    limit_seconds: float | None,
    disk_bytes: int | None,
) -> None:
    """Write run.toml with all options of a new run and the settings in `names`; the plan chooses the others again.

    A live recipe has no reference, so no file. A failed write is a message.
    """
    if not loaded.reference:
        return
    chosen = {name: value for name, value in settings.json().items() if name in names}
    try:
        write_config(
            directory.config_file,
            {**config.as_json(loaded.options), **chosen},
            recipe=loaded.reference,
            on=on,
            limit_seconds=limit_seconds,
            disk_bytes=disk_bytes,
        )
    except (OSError, ValueError) as error:
        write_messages(f"note: {directory.config_file} could not be written: {error}")


def import_training(stop: Stop) -> None:
    """Import torch and the training loop. What that takes is the measure of other imports and of leaving Python."""
    started = time.monotonic()
    limit_spinning()
    importlib.import_module("shoestring.training.loop")
    stop.deadline.reserve(time.monotonic() - started)


def continue_run(
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
    require_whole_batch(loaded, reopened.settings)
    return loaded, reopened.settings


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
