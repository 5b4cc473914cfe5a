"""The metrics of weights that a run has saved: the model alone, without its optimizer, and nothing is written."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoestring import config
from shoestring.errors import RunError, UsageError
from shoestring.hardware import targets
from shoestring.hardware.catalog import Target
from shoestring.recipe.options import LoadedRecipe
from shoestring.session.directory import RunDirectory
from shoestring.settings import Settings

if TYPE_CHECKING:
    import torch
    from torch import nn

    from shoestring.engine.precision import MixedPrecision
    from shoestring.session.stop import Stop


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """Metrics, and of what they are."""

    recipe: str
    weights: str
    """The directory they lie in."""
    update: int | None
    """That they were saved at, where that was written beside them."""
    device: str
    precision: str
    seconds: float
    metrics: dict[str, dict[str, Any]]
    """By part of the data: validation and test as far as there are, otherwise the training data."""
    notes: tuple[str, ...] = ()
    """What differs from the run, and what the recipe says of its data and its model."""


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Where weights lie, and the run that they are of."""

    run: RunDirectory
    folder: Path
    full: bool
    """Whether it is a full checkpoint rather than weights alone."""


def evaluate(
    where: Path,
    values: Mapping[str, object],
    *,
    recipe: str | object | None = None,
    on: str = "local",
    limit_seconds: float | None = None,
    started: float | None = None,
) -> Evaluated:
    """As `shoestring.evaluate` says, with options and settings in `values`."""
    if on not in targets.PROBED:
        raise UsageError(f"weights are evaluated on this machine, not on {on}", hint="--on local, or --on cpu")
    target, found = targets.find(on), find_weights(where)
    loaded, settings, notes = _decided(found.run, recipe, values)
    settings, more = _settings(settings, target, loaded, named="precision" in values)

    import torch

    from shoestring.engine.determinism import deterministic
    from shoestring.engine.environment import device_name
    from shoestring.engine.precision import mixed_precision
    from shoestring.session.stop import SessionOver, session

    device = torch.device(target.device.kind)
    began = time.monotonic()
    try:
        with session(limit_seconds, started=started) as stop, deterministic():
            with stop.at_once():
                data = loaded.data()
                model, update, unverified = _model(loaded, settings, found, device)
            assert settings.precision is not None
            precision = mixed_precision(settings.precision, device)
            metrics = {
                name: _metrics(loaded, model, precision, held, settings, device, stop) for name, held in _parts(data)
            }
    except SessionOver as over:
        raise RunError(f"not evaluated: {over.reason}", hint="a longer --limit, or fewer samples") from over
    return Evaluated(
        recipe=loaded.name,
        weights=str(found.folder),
        update=update,
        device=device_name(device),
        precision=str(settings.precision),
        seconds=time.monotonic() - began,
        metrics=metrics,
        notes=(*notes, *more, *unverified, *loaded.parts.notes()),
    )


def find_weights(where: Path) -> Weights:
    """What `where` is: a run (its best weights, else its last, else its newest checkpoint's), or a part of one.

    Raises UsageError where it is neither.
    """
    from shoestring.checkpoint.light import has_weights
    from shoestring.checkpoint.weights import is_checkpoint, newest

    where = where.absolute()
    if not where.is_dir():
        raise UsageError(f"there is no directory {where}", hint="give a run's directory: shoestring evaluate runs/NAME")
    run = RunDirectory(where)
    if run.plan_file.exists():
        for folder in (run.best, run.light):
            if has_weights(folder):
                return Weights(run=run, folder=folder, full=False)
        checkpoint = newest(run.checkpoints)
        if checkpoint is None:
            raise UsageError(f"the run in {where} has saved no weights yet", hint="train it: shoestring train")
        return Weights(run=run, folder=checkpoint, full=True)
    # Full checkpoints and the weights of epochs, in light/, have the same names.
    run = RunDirectory(where.parent.parent if is_checkpoint(where) else where.parent)
    full = is_checkpoint(where) and where.parent == run.checkpoints
    if not run.plan_file.exists() or not (full or has_weights(where)):
        raise UsageError(
            f"{where} is neither a run nor the weights of one",
            hint="give a run's directory, its best or light, or one of its checkpoints; weights alone do not say "
            "what model they are of, the plan.json of their run does",
        )
    return Weights(run=run, folder=where, full=full)


def _decided(
    run: RunDirectory, recipe: str | object | None, values: Mapping[str, object]
) -> tuple[LoadedRecipe, Settings, list[str]]:
    """The run's recipe with its options and `values`, its settings, and what is not as it was."""
    stored = run.plan()
    assert stored is not None
    reopened = stored.reopen(run.plan_file, values, recipe)
    before, now = config.as_json(reopened.stored.options), config.as_json(reopened.loaded.options)
    notes = [f"{name}={now[name]}, the run has {value}" for name, value in before.items() if now[name] != value]
    if not reopened.is_same_file:
        notes.append(f"the recipe's file is not as it was when the run began: {reopened.loaded.path}")
    return reopened.loaded, reopened.settings, notes


def _settings(
    settings: Settings, target: Target, loaded: LoadedRecipe, *, named: bool
) -> tuple[Settings, tuple[str, ...]]:
    """The run's settings as far as this device has them: no optimizer is here whose kernel or place there could be."""
    settings = settings.replace(micro_batch=settings.micro_batch or loaded.effective_batch)
    precision = settings.precision or "fp32"
    if named or precision in target.device.precisions:
        return settings.replace(precision=precision), ()
    note = f"precision fp32: {target.device.title} has no {precision}, which the run was trained in"
    return settings.replace(precision="fp32"), (note,)


def _model(
    loaded: LoadedRecipe, settings: Settings, found: Weights, device: "torch.device"
) -> "tuple[nn.Module, int | None, tuple[str, ...]]":
    """The model with the weights on `device`, the update that they are of, and a note if they are not verified."""
    from shoestring.checkpoint.light import UNVERIFIED, read_light
    from shoestring.checkpoint.weights import load_weights
    from shoestring.data.seeding import derive, seed_all
    from shoestring.techniques import adapt, offload

    seed_all(derive(loaded.seed, "model"))
    learner = loaded.parts.learner
    model = learner() if learner else adapt.trained_model(loaded.recipe.model(), loaded.adaptation, settings)
    model.eval()
    # Before loading: weights in 4 bits are packed when they come to their device.
    offload.move(model, loaded.parts, settings, device)
    if found.full:
        return model, load_weights(found.folder, model), ()
    weights = read_light(found.folder, model)
    update = weights.facts.get("update")
    unverified = () if weights.verified else (UNVERIFIED.format(folder=found.folder),)
    return model, update if isinstance(update, int) else None, unverified


def _parts(data: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Those that the model was not trained on; the training data where there are no others."""
    held_out = [(name, data[name]) for name in ("validation", "test") if name in data]
    return held_out or [("train", data["train"])]


def _metrics(
    loaded: LoadedRecipe,
    model: "nn.Module",
    precision: "MixedPrecision",
    dataset: Any,
    settings: Settings,
    device: "torch.device",
    stop: "Stop",
) -> dict[str, Any]:
    """The recipe's metrics on a part of the data, in microbatches that fit."""
    from shoestring.engine.recovery import Recovering
    from shoestring.train.evaluation import evaluate as evaluated

    def attempt(size: int) -> dict[str, Any]:
        return evaluated(
            loaded,
            model,
            precision,
            dataset,
            micro_batch=size,
            device=device,
            stop=stop,
            workers=settings.workers or 0,
        )

    size = loaded.parts.evaluation_size(settings.micro_batch or 1)
    metrics, _ = Recovering(model, None, precision).run(attempt, size)
    return metrics
