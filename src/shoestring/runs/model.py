"""The model of a run with its weights in memory, and where these come from."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoestring.base.errors import CheckpointError
from shoestring.base.units import count_text
from shoestring.recipe.options import LoadedRecipe
from shoestring.runs.run import Run
from shoestring.training.monitor.events import current, read
from shoestring.training.run_directory.directory import RunDirectory

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, kw_only=True)
class Model:
    """A trained model in memory."""

    run: Run
    module: "nn.Module"
    """In evaluation mode, on the run's device."""
    update: int | None
    """The update after which the weights were saved; None if it is not stored with them."""
    notes: tuple[str, ...]
    """Whether the weights are verified, and belong to the run."""

    def describe_origin(self) -> str:
        """Return which weights they are, and how far their run was: "the weights of update 12, ...; the run is ..."."""
        name = "the weights" if self.update is None else f"the weights of update {count_text(self.update)}"
        directory, path = self.run.directory, self.run.weights
        if directory is None:
            return f"{name} in {path.name}, which belong to no run"
        kind = "the best by the metric of the validation data" if path == directory.best else path.name
        state = directory.state()
        if state is None:
            return f"{name} ({kind}); the progress of the run is not known"
        progress = f"update {count_text(state.update)} of {count_text(state.total_updates)}"
        if state.status == "finished":
            return f"{name} ({kind}); the run is finished, at {progress}"
        return f"{name} ({kind}); the run is not finished: it is {state.status or 'interrupted'} at {progress}"

    def read_metrics(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the metrics of the weights by part of the data, as far as the run has computed them."""
        directory = self.run.directory
        if directory is None:
            return {}
        state = directory.state()
        if state and state.status == "finished" and self.run.weights == directory.best:
            return state.metrics  # the test data are evaluated only with these weights
        return {
            str(event["part"]): event["metrics"]
            for event in current(read(directory.events_file))
            if event["event"] == "evaluation" and event.get("update") == self.update and event.get("part") != "test"
        }


def load_model(run: Run) -> Model:
    """Build the recipe's model and load the run's weights.

    Raises CheckpointError for weights that are damaged or belong to another model.
    """
    from shoestring.techniques import fp32_modules, memory_format
    from shoestring.techniques.pipeline import placement
    from shoestring.training.checkpoint.light import UNVERIFIED, read_light
    from shoestring.training.checkpoint.weights import load_weights
    from shoestring.training.data.seeding import derive, seed_all

    seed_all(derive(run.loaded.seed, "model"))
    module = _build(run)
    module.eval()
    memory_format.apply(module, run.settings.memory_format)
    # Before loading, because 4-bit weights are packed when they are moved to their device.
    placement.move(module, run.loaded.parts, placement.on_available_gpus(run.settings), run.device)
    fp32_modules.apply(module, run.settings.fp32_modules)
    path = run.weights
    if run.directory is None:
        note = f"the weights in {path} belong to no run, so nothing shows how they were trained"
        return Model(run=run, module=module, update=None, notes=(note,))
    notes = _frozen_notes(run.directory, module)
    if run.is_checkpoint:
        return Model(run=run, module=module, update=load_weights(path, module), notes=notes)
    light_weights = read_light(path, module)
    update = light_weights.facts.get("update")
    notes += () if light_weights.verified else (UNVERIFIED.format(folder=path),)
    return Model(run=run, module=module, update=update if isinstance(update, int) else None, notes=notes)


def _build(run: Run) -> "nn.Module":
    from shoestring.techniques import adapt

    loaded, parts = run.loaded, run.loaded.parts
    if run.directory is None:
        return _build_pretrained(loaded, run.weights)
    if parts.learning.learner:
        return parts.learning.learner()
    has_all_weights = loaded.adaptation.lora_r is None
    build = parts.use.skeleton if parts.use.skeleton and has_all_weights else loaded.recipe.model
    return adapt.trained_model(
        build(), loaded.adaptation, run.settings, keeps_stored_type=parts.learning.keeps_stored_type
    )


def _build_pretrained(loaded: LoadedRecipe, path: Path) -> "nn.Module":
    """Return the recipe's model with weights that belong to no run."""
    if loaded.parts.use.pretrained:
        return loaded.parts.use.pretrained(path)
    from shoestring.training.checkpoint.foreign import load_foreign

    model: nn.Module = loaded.recipe.model()
    load_foreign(path, model)
    return model


def _frozen_notes(run: RunDirectory, model: "nn.Module") -> tuple[str, ...]:
    """Return a note if the frozen weights, which are not stored in a run, are not those it was trained with."""
    from shoestring.training.checkpoint.manifest import DamagedFileError
    from shoestring.training.checkpoint.names import update_of
    from shoestring.training.checkpoint.sections import read_sections
    from shoestring.training.checkpoint.trained import frozen_digest
    from shoestring.training.checkpoint.weights import newest

    digest, checkpoint = frozen_digest(model), newest(run.checkpoints)
    if digest is None or checkpoint is None:
        return ()
    try:
        environment = read_sections(checkpoint, update_of(checkpoint.name) or 0, only={"environment"})["environment"]
    except (DamagedFileError, CheckpointError):
        return ()
    if not isinstance(environment, dict) or environment.get("frozen weights") == digest:
        return ()
    return ("the frozen weights, to which the trained ones were fitted, are not those of the run: another base model?",)
