"""Making one update of a run again, to the bit, and watching it. The run's directory is only read.

The state comes from the nearest checkpoint before the update, or from the seed; the updates in between are made by the
steps of training. What these record goes to a temporary directory.
"""

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from shoestring.base.errors import RunError, UsageError
from shoestring.base.failures import exits_as_errors
from shoestring.base.settings import Settings
from shoestring.base.system_errors import require_present
from shoestring.hardware import targets
from shoestring.runs.replay.debugging import Debugged
from shoestring.runs.replay.replayed import Replay
from shoestring.runs.replay.replaying import Replaying
from shoestring.runs.run import Run, reopen
from shoestring.training.run_directory.directory import RunDirectory

if TYPE_CHECKING:
    from shoestring.training.checkpoint.store import Restored

_SAVED_SETTINGS = (
    *("micro_batch", "precision", "checkpointing", "optimizer_kernel", "offload", "compile", "cudnn_benchmark"),
    *("fp32_modules", "packing", "memory_format", "tf32"),
)
"""The settings in the environment of a checkpoint: a later session may have had others than the plan."""


def open_replayable(
    location: Path,
    update: int,
    values: Mapping[str, object],
    *,
    recipe: str | object | None = None,
    on: str = "local",
) -> Run:
    """Return the run in the directory `location`, with options and settings in `values`.

    Raises UsageError if it cannot have made the update, and as `StoredPlan.reopen` does.
    """
    directory = _find_directory(location, update, on)
    return reopen(directory, directory.checkpoints, values, targets.find(on), recipe=recipe)


def replay(run: Run, update: int, *, debug: bool = False) -> Replay:
    """Implement `shoestring.replay`."""
    directory, loaded, values = run.directory, run.loaded, run.values
    assert directory is not None
    if debug and loaded.parts.learning.trainer:
        raise UsageError(
            f"the loss of {loaded.name} is computed by a library's trainer, so there is no loss() to stop in",
            hint="call breakpoint() in the code that the trainer calls, for example in a reward, and leave out --break",
        )

    from shoestring.training.checkpoint.earlier import read_earlier
    from shoestring.training.engine.determinism import deterministic_shards
    from shoestring.training.monitor.events import read
    from shoestring.training.recorded_sizes import RecordedSizes
    from shoestring.training.request import SessionRequest
    from shoestring.training.session.stop import SessionOver, session

    restored, damage = read_earlier(directory.checkpoints, update - 1)
    settings = _settings_of(restored, run.settings, values).replace(workers=0, stage="no")
    settings = settings.replace(
        micro_batch=settings.micro_batch or loaded.effective_batch, precision=settings.precision or "fp32"
    )
    sizes = RecordedSizes(read(directory.events_file))
    if debug:
        loaded = replace(loaded, recipe=Debugged(loaded.recipe))
    try:
        with (
            session() as stop,
            tempfile.TemporaryDirectory(prefix="shoestring-replay-") as folder,
            deterministic_shards(settings.logical_shards, run.device),
            exits_as_errors(),
        ):
            stop.signals.describe_loss = lambda: "the run is unchanged"
            request = SessionRequest(
                loaded=loaded,
                settings=settings,
                run=RunDirectory(Path(folder)),
                target=run.target.name,
                device=run.device,
                stop=stop,
                allow_inexact=True,
            )
            result = Replaying(directory, update, sizes, restored).result(request)
    except SessionOver as over:
        raise RunError(f"not replayed: {over.reason}", hint="the run is unchanged; repeat the command") from over
    set_notes = [
        f"{name}={values[name]} is set by this command: the bits may differ from those of the run"
        for name in values
        if hasattr(settings, name)
    ]
    damage_notes = [f"a damaged checkpoint was skipped: {text}" for text in damage]
    return replace(result, notes=(*run.notes, *set_notes, *damage_notes, *result.notes))


def _find_directory(location: Path, update: int, on: str) -> RunDirectory:
    """Return the directory of a run. Raises UsageError if it cannot have made the update."""
    run = RunDirectory(location.absolute())
    if on not in targets.PROBED:
        raise UsageError(f"an update can only be replayed on this machine, not on {on}", hint="use local or cpu")
    require_present(location, "for example: shoestring replay runs/NAME")
    if not run.plan_file.exists():
        raise UsageError(f"{location} is not the directory of a run", hint="for example: shoestring replay runs/NAME")
    run.require_own()
    plan, state = run.plan(), run.state()
    assert plan is not None
    if plan.settings is not None and plan.reference is None:
        raise UsageError(
            f"the updates of the run in {location} are made by the trainer of a script, which alone can build it",
            hint="to replay updates, write a recipe with trainer(): see docs/explanation/recipes.md",
        )
    total = state.total_updates if state else 0
    if update < 1 or (total and update > total):
        last = f" to {total}" if total else ""
        raise UsageError(f"--update {update}: the updates of the run in {location} are counted from 1{last}")
    return run


def _settings_of(restored: "Restored | None", settings: Settings, values: Mapping[str, object]) -> Settings:
    """Return the settings with those that the checkpoint was saved with, unless `values` has others."""
    saved = restored.state.get("environment") if restored else None
    if not isinstance(saved, dict):
        return settings
    own = {name: value if value not in ("no", False) else None for name, value in settings.json().items()}
    changed = [name for name in _SAVED_SETTINGS if name not in values and saved.get(name) != own[name]]
    defaults = Settings().json()
    changes = {name: defaults[name] if saved.get(name) is None else saved[name] for name in changed}
    return Settings.from_json({**settings.json(), **changes})
