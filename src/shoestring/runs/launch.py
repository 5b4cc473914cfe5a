"""From a question to a run: what was asked for is found and decided, then the run is begun, or continued."""

import dataclasses
import importlib
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from shoestring.errors import RunError, UsageError
from shoestring.hardware import targets
from shoestring.hardware.catalog import Target
from shoestring.plan.plan import Plan, make_plan
from shoestring.recipe.contract import require_data
from shoestring.recipe.finding import choose
from shoestring.recipe.options import LoadedRecipe
from shoestring.session.directory import RunDirectory
from shoestring.session.stored import StoredPlan, StoredState
from shoestring.settings import Settings
from shoestring.techniques.trainable import require_trainable
from shoestring.units import bytes_text

if TYPE_CHECKING:
    from shoestring.train.loop import Outcome


@dataclass(frozen=True, kw_only=True)
class LaunchRequest:
    """Where a run is to train, and within which limits."""

    run: Path
    on: str = "local"
    """The target whose platform's limits count."""
    limit_seconds: float | None = None
    """Of this session, instead of the platform's."""
    disk_bytes: int | None = None
    """Of the run's directory, instead of the platform's."""
    started: float = field(default_factory=time.monotonic)
    """When the session began, by `time.monotonic()`: planning is part of it."""
    allow_inexact: bool = False
    """Continue under other versions, hardware or settings."""


def launch(
    recipe: str | object, values: Mapping[str, object], request: LaunchRequest, plan: Plan | None = None
) -> "Outcome":
    """Train as `shoestring.train` says, with options and settings in `values`."""
    target = _here(request.on)
    directory = RunDirectory(request.run)
    directory.create()
    with directory.locked():
        stored = directory.plan()
        if stored is None:
            loaded, settings = _begin(directory, recipe, plan, target, values)
        else:
            loaded, settings = _continue(stored, directory, recipe, values)
            state = directory.state()
            if state and state.status == "finished":
                _say(f"the run in {directory.path} is finished; shoestring report {directory.path} draws it")
                return _outcome(state)
        return _train(loaded, settings, directory, target, request)


def _here(on: str) -> Target:
    """This machine under the limits of the platform of `on`."""
    asked = targets.find(on)
    return asked if on in targets.PROBED else dataclasses.replace(targets.find("local"), platform=asked.platform)


def _begin(
    directory: RunDirectory,
    recipe: str | object,
    plan: Plan | None,
    target: Target,
    values: Mapping[str, object],
) -> tuple[LoadedRecipe, Settings]:
    """Decide on a new run and write its plan.json."""
    if plan is not None:
        unset = {name: value for name, value in plan.options.items() if name not in values}
        loaded, wanted = choose(recipe, {**unset, **values})
    else:
        loaded, wanted = choose(recipe, values)
    require_data(loaded.recipe)
    require_trainable(wanted, loaded.adaptation)
    if plan is None or plan.target.device.name != target.device.name:
        if target.device.kind == "cpu":  # on a GPU the plan's allocator has to be known before torch is imported
            # The process that follows the update begins with what is here.
            importlib.import_module("shoestring.train.loop")
        made = make_plan(loaded, target, wanted)
        if plan is not None:
            _say(_replanned(plan, made))
        plan = made
    if not plan.fits:
        raise RunError(
            f"{plan.recipe} does not fit {target.device.title}",
            problems=plan.reasons,
            hint="plan with other settings or options: shoestring plan",
        )
    StoredPlan.of(loaded, plan.json()).write(directory.plan_file)
    return loaded, plan.settings


def _continue(
    stored: StoredPlan, directory: RunDirectory, recipe: str | object, values: Mapping[str, object]
) -> tuple[LoadedRecipe, Settings]:
    """The run's own recipe and options, and its settings with those that are set anew."""
    reopened = stored.reopen(directory.plan_file, values, recipe)
    loaded, before = reopened.loaded, reopened.stored
    changed = [
        f"{name}: the run has {before.options[name]}, asked for is {value}"
        for name, value in loaded.options.items()
        if value != before.options[name] and name not in loaded.paths
    ]
    if changed:
        raise UsageError(
            f"the run in {directory.path} keeps the options it began with",
            problems=changed,
            hint="they change what is learnt: begin another run with another --run",
        )
    require_trainable(reopened.settings, loaded.adaptation)
    return loaded, reopened.settings


def _outcome(state: StoredState) -> "Outcome":
    """The outcome that state.json records."""
    from shoestring.train.loop import Outcome

    return Outcome(**{field.name: getattr(state, field.name) for field in dataclasses.fields(Outcome)})


def _train(
    loaded: LoadedRecipe, settings: Settings, directory: RunDirectory, target: Target, request: LaunchRequest
) -> "Outcome":
    if settings.allocator == "expandable" and target.device.kind == "cuda":
        _expandable_segments()
    import torch

    from shoestring.session.deadline import Deadline
    from shoestring.session.signals import StopSignals
    from shoestring.session.stop import SessionOver, Stop
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
    # A platform's limits are what they are today; those of the request count instead.
    platform, limit_seconds, disk_bytes = target.platform, request.limit_seconds, request.disk_bytes
    if limit_seconds is None and platform and platform.session_hours:
        limit_seconds = platform.session_hours * 3600
    if disk_bytes is None and platform:
        disk_bytes = platform.disk_bytes
    with StopSignals() as signals:
        try:
            session = SessionRequest(
                loaded=loaded,
                settings=settings,
                run=directory,
                target=request.on,
                device=device,
                stop=Stop(deadline=Deadline(limit_seconds, started=request.started), signals=signals),
                disk_bytes=disk_bytes,
                allow_inexact=request.allow_inexact,
            )
            return train(session, library)
        except SessionOver:
            return _outcome(directory.state() or StoredState())


def _expandable_segments() -> None:
    """Have torch's CUDA allocator grow its segments; it reads this when it starts."""
    name, chosen = "PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"
    before = os.environ.get(name)
    if before and chosen in before:
        return
    os.environ[name] = f"{before},{chosen}" if before else chosen
    if "torch" in sys.modules:
        _say(f"torch was imported before allocator=expandable was set: if it is not in force, set {name}={chosen}")


def _replanned(old: Plan, new: Plan) -> str:
    """What a plan for another device and the one for this differ in."""
    before, after = old.settings.json(), new.settings.json()
    changes = [f"{name} {before[name]} -> {after[name]}" for name in before if before[name] != after[name]]
    return (
        f"planned for {old.target.device.title}, this is {new.target.device.title}: planned anew with the same "
        f"effective batch; {', '.join(changes) or 'the settings stay'}; memory "
        f"{bytes_text(old.memory.peak_bytes)} -> {bytes_text(new.memory.peak_bytes)}"
    )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
