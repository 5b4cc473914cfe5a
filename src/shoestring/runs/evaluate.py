"""Evaluation of a run's saved weights. It loads the model without its optimizer and writes nothing."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoestring import config
from shoestring.errors import RunError, UsageError
from shoestring.failures import exits_as_errors
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
class Evaluation:
    """The metrics of a run's weights."""

    recipe: str
    weights: str
    """The directory of the weights."""
    update: int | None
    """The update after which the weights were saved; None if it is not stored with them."""
    device: str
    precision: str
    seconds: float
    metrics: dict[str, dict[str, Any]]
    """By part of the data: validation and test if the recipe has them, otherwise the training data."""
    notes: tuple[str, ...] = ()
    """Differences from the run, and the recipe's notes on its data and its model."""


@dataclass(frozen=True, kw_only=True)
class Weights:
    """The location of saved weights and the run that they belong to."""

    run: RunDirectory
    folder: Path
    full: bool
    """Whether the folder is a full checkpoint rather than weights alone."""


def evaluate(
    location: Path,
    values: Mapping[str, object],
    *,
    recipe: str | object | None = None,
    on: str = "local",
    limit_seconds: float | None = None,
    started: float | None = None,
) -> Evaluation:
    """Implement `shoestring.evaluate`, with options and settings in `values`."""
    if on not in targets.PROBED:
        raise UsageError(
            f"weights can only be evaluated on this machine, not on {on}", hint="use --on local or --on cpu"
        )
    target, weights = targets.find(on), find_weights(location)
    loaded, settings, run_notes = _reopen_run(weights.run, recipe, values)
    settings, settings_notes = _adapt_settings(settings, target, loaded, is_precision_set="precision" in values)

    import torch

    from shoestring.engine.determinism import deterministic
    from shoestring.engine.environment import device_name
    from shoestring.engine.memory import explaining_out_of_memory
    from shoestring.engine.precision import mixed_precision
    from shoestring.session.stop import SessionOver, session

    device = torch.device(target.device.kind)
    started_at = time.monotonic()
    try:
        with session(limit_seconds, started=started) as stop, deterministic(), exits_as_errors():
            with stop.interrupting(), explaining_out_of_memory("loading the data, data()"):
                data = loaded.data()
            with stop.interrupting(), explaining_out_of_memory("loading the model and its weights"):
                model, update, weights_notes = _load_model(loaded, settings, weights, device)
            assert settings.precision is not None
            precision = mixed_precision(settings.precision, device)
            with explaining_out_of_memory("evaluating"):
                metrics = {
                    part: _compute_metrics(loaded, model, precision, dataset, settings, device, stop)
                    for part, dataset in _evaluated_parts(data)
                }
    except SessionOver as over:
        raise RunError(f"not evaluated: {over.reason}", hint="set a longer --limit, or use fewer samples") from over
    return Evaluation(
        recipe=loaded.name,
        weights=str(weights.folder),
        update=update,
        device=device_name(device),
        precision=str(settings.precision),
        seconds=time.monotonic() - started_at,
        metrics=metrics,
        notes=(*run_notes, *settings_notes, *weights_notes, *loaded.parts.notes()),
    )


def find_weights(path: Path) -> Weights:
    """Return the weights at `path`: a run's folder of weights, a checkpoint, or the directory of a run.

    Of a run they are its best weights, else its last ones, else those of its newest checkpoint.

    Raises UsageError for any other path, and for a run that has saved no weights.
    """
    from shoestring.checkpoint.light import has_weights
    from shoestring.checkpoint.weights import is_checkpoint, newest

    path = path.absolute()
    if not path.is_dir():
        raise UsageError(f"there is no directory {path}", hint="pass a run's directory: shoestring evaluate runs/NAME")
    run = RunDirectory(path)
    if run.plan_file.exists():
        run.refuse_links()
        for folder in (run.best, run.light):
            if has_weights(folder):
                return Weights(run=run, folder=folder, full=False)
        checkpoint = newest(run.checkpoints)
        if checkpoint is None:
            raise UsageError(f"the run in {path} has saved no weights yet", hint="train it: shoestring train")
        return Weights(run=run, folder=checkpoint, full=True)
    # Full checkpoints and the weights of epochs, in light/, have the same names.
    run = RunDirectory(path.parent.parent if is_checkpoint(path) else path.parent)
    full = is_checkpoint(path) and path.parent == run.checkpoints
    if run.plan_file.exists():
        run.refuse_links()
    if not run.plan_file.exists() or not (full or has_weights(path)):
        raise UsageError(
            f"{path} is neither a run nor the weights of a run",
            hint="pass a run's directory, its best or light, or one of its checkpoints; the plan.json of the run is "
            "required, because it defines the model",
        )
    return Weights(run=run, folder=path, full=full)


def _reopen_run(
    run: RunDirectory, recipe: str | object | None, values: Mapping[str, object]
) -> tuple[LoadedRecipe, Settings, list[str]]:
    """Return the run's recipe with its options and `values`, its settings, and notes on differences from the run."""
    stored = run.plan()
    assert stored is not None
    reopened = stored.reopen(run.plan_file, values, recipe)
    stored_options, options = config.as_json(reopened.stored.options), config.as_json(reopened.loaded.options)
    notes = [
        f"{name}={options[name]}, but the run was trained with {value}"
        for name, value in stored_options.items()
        if options[name] != value
    ]
    if stored.is_changed:
        notes.append(f"{run.plan_file} has changed since it was written: its digest does not match its content")
    notes += [f"the recipe's file has changed since the run started: {path}" for path in reopened.changed_files]
    return reopened.loaded, reopened.settings, notes


def _adapt_settings(
    settings: Settings, target: Target, loaded: LoadedRecipe, *, is_precision_set: bool
) -> tuple[Settings, tuple[str, ...]]:
    """Return the run's settings for this device, with a note if it does not support the run's precision."""
    settings = settings.replace(micro_batch=settings.micro_batch or loaded.effective_batch)
    precision = settings.precision or "fp32"
    if is_precision_set or precision in target.device.precisions:
        return settings.replace(precision=precision), ()
    note = f"precision is fp32: {target.device.title} does not support {precision}, with which the run was trained"
    return settings.replace(precision="fp32"), (note,)


def _load_model(
    loaded: LoadedRecipe, settings: Settings, weights: Weights, device: "torch.device"
) -> "tuple[nn.Module, int | None, tuple[str, ...]]":
    """Return the model with the weights on `device`, their update, and a note if they are not verified."""
    from shoestring.checkpoint.light import UNVERIFIED, read_light
    from shoestring.checkpoint.weights import load_weights
    from shoestring.data.seeding import derive, seed_all
    from shoestring.techniques import adapt, offload

    seed_all(derive(loaded.seed, "model"))
    learner = loaded.parts.learner
    model = learner() if learner else adapt.trained_model(loaded.recipe.model(), loaded.adaptation, settings)
    model.eval()
    # Before loading, because 4-bit weights are packed when they are moved to their device.
    offload.move(model, loaded.parts, settings, device)
    if weights.full:
        return model, load_weights(weights.folder, model), ()
    light_weights = read_light(weights.folder, model)
    update = light_weights.facts.get("update")
    notes = () if light_weights.verified else (UNVERIFIED.format(folder=weights.folder),)
    return model, update if isinstance(update, int) else None, notes


def _evaluated_parts(data: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the parts that the model was not trained on; the training data if there are no others."""
    held_out = [(name, data[name]) for name in ("validation", "test") if name in data]
    return held_out or [("train", data["train"])]


def _compute_metrics(
    loaded: LoadedRecipe,
    model: "nn.Module",
    precision: "MixedPrecision",
    dataset: Any,
    settings: Settings,
    device: "torch.device",
    stop: "Stop",
) -> dict[str, Any]:
    """Return the recipe's metrics on a part of the data, with smaller microbatches on out-of-memory."""
    from shoestring.engine.recovery import Recovering
    from shoestring.train.evaluation import evaluate as evaluate_dataset

    def attempt(size: int) -> dict[str, Any]:
        return evaluate_dataset(
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
