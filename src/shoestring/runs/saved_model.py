"""Opening a saved model: its recipe with the options of its run, its settings, and its weights."""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shoestring.base import config
from shoestring.base.errors import CheckpointError, ShoestringError, UsageError
from shoestring.base.settings import Settings
from shoestring.hardware import targets
from shoestring.hardware.catalog import Target
from shoestring.recipe.finding import choose
from shoestring.recipe.options import LoadedRecipe
from shoestring.training.checkpoint.folder import MANIFEST, verify_folder
from shoestring.training.data.seeded import seeded_data
from shoestring.training.preprocessing import load_preprocessing
from shoestring.training.run_directory.directory import RunDirectory

if TYPE_CHECKING:
    import torch
    from torch import nn

    from shoestring.training.engine.precision import MixedPrecision


@dataclass(frozen=True, kw_only=True)
class Weights:
    """The location of saved weights and the run that they belong to."""

    path: Path
    """A run's folder of weights or one of its checkpoints; without a run any file or folder."""
    run: RunDirectory | None
    full: bool = False
    """Whether the path is a full checkpoint rather than weights alone."""


@dataclass(frozen=True, kw_only=True)
class SavedModel:
    """A recipe and the location of weights for its model. Nothing is in memory yet."""

    loaded: LoadedRecipe
    settings: Settings
    """With microbatch and precision set for this machine."""
    stored: LoadedRecipe | None
    """The recipe with the stored options of the run; None without a run."""
    weights: Weights
    target: Target
    notes: tuple[str, ...]
    """Differences from the run."""

    @property
    def device(self) -> "torch.device":
        import torch

        return torch.device(self.target.device.kind)

    def mixed_precision(self) -> "MixedPrecision":
        """Return the precision of the forward pass."""
        from shoestring.training.engine.precision import mixed_precision

        assert self.settings.precision is not None
        return mixed_precision(self.settings.precision, self.device)

    @contextmanager
    def preprocessing(self) -> Iterator[tuple[str, ...]]:
        """Load what the run has stored for inference into the recipe, for the time of the context.

        Runs of versions before this was stored derive it again from the data that they were trained on. Returns notes
        for the user.

        Raises CheckpointError if the folder is damaged, and errors of the recipe.
        """
        with ExitStack() as folders:
            yield self._load_preprocessing(folders)

    def _load_preprocessing(self, folders: ExitStack) -> tuple[str, ...]:
        load, run = self.loaded.parts.use.load_preprocessing, self.weights.run
        if load is None:
            return ()
        if run is None:
            folder = _find_preprocessing(self.weights.path)
            if folder is None:
                return (
                    f"{self.weights.path} has no preprocessing/: what was fitted on the training data is not known, "
                    "and is fitted on this data where that is possible",
                )
            verify_folder(folder)
            load(folder)
        elif not load_preprocessing(run, self.loaded.parts):
            temporary = Path(folders.enter_context(tempfile.TemporaryDirectory()))
            try:
                self._derive_preprocessing(temporary)
            except ShoestringError as error:
                return (
                    f"the preprocessing of the training data is not known, because {run.preprocessing} is missing: "
                    f"{error}",
                )
            load(temporary)
        return ()

    def _derive_preprocessing(self, folder: Path) -> None:
        assert self.stored is not None
        parts = self.stored.parts
        assert parts.use.save_preprocessing is not None
        seeded_data(self.stored)
        parts.use.save_preprocessing(folder)

    def load_model(self) -> "tuple[nn.Module, int | None, tuple[str, ...]]":
        """Return the model with its weights on the device, in evaluation mode, their update (None if it is not stored
        with them), and notes for the user.

        Raises CheckpointError for weights that are damaged or belong to another model.
        """
        from shoestring.techniques import fp32_modules, memory_format, offload
        from shoestring.training.checkpoint.light import UNVERIFIED, read_light
        from shoestring.training.checkpoint.weights import load_weights
        from shoestring.training.data.seeding import derive, seed_all

        seed_all(derive(self.loaded.seed, "model"))
        model = self._build_model()
        model.eval()
        memory_format.apply(model, self.settings.memory_format)
        # Before loading, because 4-bit weights are packed when they are moved to their device.
        offload.move(model, self.loaded.parts, self.settings, self.device)
        fp32_modules.apply(model, self.settings.fp32_modules)
        path = self.weights.path
        if self.weights.run is None:
            return model, None, (f"the weights in {path} belong to no run, so nothing shows how they were trained",)
        notes = _frozen_notes(self.weights.run, model)
        if self.weights.full:
            return model, load_weights(path, model), notes
        light_weights = read_light(path, model)
        update = light_weights.facts.get("update")
        notes += () if light_weights.verified else (UNVERIFIED.format(folder=path),)
        return model, update if isinstance(update, int) else None, notes

    def _build_model(self) -> "nn.Module":
        from shoestring.techniques import adapt

        loaded, parts = self.loaded, self.loaded.parts
        if self.weights.run is None:
            return _build_pretrained(loaded, self.weights.path)
        if parts.learning.learner:
            return parts.learning.learner()
        has_all_weights = loaded.adaptation.lora_r is None
        build = parts.use.skeleton if parts.use.skeleton and has_all_weights else loaded.recipe.model
        keeps_stored_type = loaded.parts.learning.keeps_stored_type
        return adapt.trained_model(build(), loaded.adaptation, self.settings, keeps_stored_type=keeps_stored_type)


def open_saved(
    location: Path,
    values: Mapping[str, object],
    *,
    recipe: str | object | None = None,
    on: str = "local",
    is_prediction: bool = False,
) -> SavedModel:
    """Return the saved model at `location`, with options and settings in `values`.

    The notes name the options that differ from those of the run, for a prediction without paths and options that only
    predictions have. `location` is a run, a folder of its weights or one of its checkpoints; with `recipe` also weights
    without a run.

    Raises UsageError for any other path, and as `StoredPlan.reopen` does.
    """
    if on not in targets.PROBED:
        raise UsageError(f"a saved model can only be used on this machine, not on {on}", hint="use local or cpu")
    target, weights = targets.find(on), find_weights(location, has_recipe=recipe is not None)
    stored = None
    if weights.run is None:
        assert recipe is not None
        loaded, settings = choose(recipe, values)
        notes: list[str] = []
    else:
        loaded, settings, stored, notes = reopen_run(weights.run, recipe, values, is_prediction=is_prediction)
    settings, settings_notes = _adapt_settings(settings, target, loaded, is_precision_set="precision" in values)
    return SavedModel(
        loaded=loaded,
        settings=settings,
        stored=stored,
        weights=weights,
        target=target,
        notes=(*notes, *settings_notes),
    )


def find_weights(path: Path, *, has_recipe: bool = False) -> Weights:
    """Return the weights at `path`: a run's folder of weights, a checkpoint, or the directory of a run.

    Of a run they are its best weights, else its last ones, else those of its newest checkpoint. If the recipe is known
    (`has_recipe`), weights may also be without a run.

    Raises UsageError for any other path, and for a run that has saved no weights.
    """
    from shoestring.training.checkpoint.light import has_weights
    from shoestring.training.checkpoint.weights import is_checkpoint, newest

    path = path.absolute()
    if not path.exists():
        raise UsageError(f"there is no directory {path}", hint="pass a run's directory, for example runs/NAME")
    run = RunDirectory(path)
    if run.plan_file.exists():
        run.refuse_links()
        for folder in (run.best, run.light):
            if has_weights(folder):
                return Weights(run=run, path=folder)
        checkpoint = newest(run.checkpoints)
        if checkpoint is None:
            raise UsageError(f"the run in {path} has saved no weights yet", hint="train it: shoestring train")
        return Weights(run=run, path=checkpoint, full=True)
    # Full checkpoints and the weights of epochs, in light/, have the same names.
    run = RunDirectory(path.parent.parent if is_checkpoint(path) else path.parent)
    full = is_checkpoint(path) and path.parent == run.checkpoints
    if run.plan_file.exists():
        run.refuse_links()
        if full or has_weights(path):
            return Weights(run=run, path=path, full=full)
    if has_recipe:
        return Weights(run=None, path=path)
    raise UsageError(
        f"{path} is neither a run nor the weights of a run",
        hint="pass a run's directory, its best or light, or one of its checkpoints; for weights without the plan.json "
        "of a run, name the recipe that defines the model: --recipe NAME",
    )


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


def _find_preprocessing(path: Path) -> Path | None:
    """Return the folder with the preprocessing of weights without a run: within them as in an export, or beside."""
    candidates = (path / "preprocessing", path.parent / "preprocessing")
    return next((folder for folder in candidates if (folder / MANIFEST).is_file()), None)


def _build_pretrained(loaded: LoadedRecipe, path: Path) -> "nn.Module":
    """Return the recipe's model with weights that belong to no run."""
    if loaded.parts.use.pretrained:
        return loaded.parts.use.pretrained(path)
    from shoestring.training.checkpoint.foreign import load_foreign

    model: nn.Module = loaded.recipe.model()
    load_foreign(path, model)
    return model


def reopen_run(
    run: RunDirectory, recipe: str | object | None, values: Mapping[str, object], *, is_prediction: bool = False
) -> tuple[LoadedRecipe, Settings, LoadedRecipe, list[str]]:
    """Return the run's recipe with its options and `values`, its settings, the recipe with its stored options, and
    notes on differences from the run; for a prediction without paths and options that only predictions have.
    """
    plan = run.plan()
    assert plan is not None
    reopened = plan.reopen(run.plan_file, values, recipe)
    if is_prediction and (absent := _absent_paths(reopened.loaded, values)):
        reopened = plan.reopen(run.plan_file, {**values, **absent}, recipe)
    stored_options, options = config.as_json(reopened.stored.options), config.as_json(reopened.loaded.options)
    unmentioned = {*reopened.loaded.paths, *reopened.loaded.parts.use.prediction_options} if is_prediction else set()
    notes = [
        f"{name}={options[name]}, but the run was trained with {value}"
        for name, value in stored_options.items()
        if options[name] != value and name not in unmentioned
    ]
    if plan.is_changed:
        notes.append(f"{run.plan_file} has changed since it was written: its digest does not match its content")
    notes += reopened.changes
    return reopened.loaded, reopened.settings, reopened.stored, notes


def _absent_paths(loaded: LoadedRecipe, values: Mapping[str, object]) -> dict[str, None]:
    """Return the options of the training data that are not set for other data, and whose paths are not here, as None.

    A run on Kaggle has the paths of its session.
    """
    if "data" not in values:
        return {}
    inherited = [name for name in loaded.parts.data.data_options if name not in values]
    return {name: None for name in inherited if name in loaded.paths and not Path(loaded.paths[name]).exists()}


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
