"""A run as a value, which `evaluate`, `predict`, `export` and `replay` take: its recipe, settings and weights.

What is verified, and when:

- `open_run` and `reopen` refuse links among the files of the directory, before they read one. A plan.json whose digest
  does not match is a note. A recipe's file that the directory alone names has to be trusted before it is executed
  (`training/run_directory/trust.py`); one that has changed since the run started is a note.
- `Run.preprocessing` compares every file with its digest before the recipe reads it.
- `load_model` (`model.py`) compares every file of the weights with its digest, and the frozen weights with those of the
  run. Weights that have no digests, or no run, are a note. A replay verifies the checkpoint that it begins with.

Nothing is unpickled, and nothing in the directory is changed. A report and `watch` execute no recipe, so they open no
`Run`: they read the records in the directory.
"""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from shoestring.base import config
from shoestring.base.errors import ShoestringError, UsageError
from shoestring.base.settings import Settings
from shoestring.base.system_errors import require_present
from shoestring.hardware import targets
from shoestring.hardware.catalog import Target
from shoestring.recipe.finding import choose
from shoestring.recipe.options import LoadedRecipe
from shoestring.runs.exported import usage_hint
from shoestring.training.checkpoint.folder import MANIFEST, verify_folder
from shoestring.training.data.seeded import seeded_data
from shoestring.training.preprocessing import load_preprocessing
from shoestring.training.run_directory.contents import PREPROCESSING
from shoestring.training.run_directory.directory import RunDirectory
from shoestring.training.run_directory.fold_runs import naming_folds

if TYPE_CHECKING:
    import torch

    from shoestring.training.engine.precision import MixedPrecision


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run, or weights that belong to none. No weights are in memory yet."""

    directory: RunDirectory | None
    """None for weights without a run."""
    weights: Path
    """A folder of the run's weights or one of its checkpoints; for a replay, all of them; without a run any file or
    folder.
    """
    loaded: LoadedRecipe
    """The recipe with the options of the run and those of this command."""
    settings: Settings
    stored: LoadedRecipe | None
    """The recipe with the options of the run alone; None without a run."""
    values: Mapping[str, object]
    """The options and settings of this command."""
    target: Target
    notes: tuple[str, ...]
    """Differences from the run as it was trained."""

    @property
    def is_checkpoint(self) -> bool:
        """Whether the weights are those of a full checkpoint."""
        return self.directory is not None and self.weights.parent == self.directory.checkpoints

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
        load, directory = self.loaded.parts.use.load_preprocessing, self.directory
        if load is None:
            return ()
        if directory is None:
            folder = _find_preprocessing(self.weights)
            if folder is None:
                return (
                    f"{self.weights} has no preprocessing/: what was fitted on the training data is not known, "
                    "and is fitted on this data where that is possible",
                )
            verify_folder(folder)
            load(folder)
        elif not load_preprocessing(directory, self.loaded.parts):
            temporary = Path(folders.enter_context(tempfile.TemporaryDirectory()))
            try:
                self._derive_preprocessing(temporary)
            except ShoestringError as error:
                return (
                    f"the preprocessing of the training data is not known, because {directory.preprocessing} is "
                    f"missing: {error}",
                )
            load(temporary)
        return ()

    def _derive_preprocessing(self, folder: Path) -> None:
        assert self.stored is not None
        parts = self.stored.parts
        assert parts.use.save_preprocessing is not None
        seeded_data(self.stored)
        parts.use.save_preprocessing(folder)


def open_run(
    location: Path,
    values: Mapping[str, object],
    *,
    recipe: str | object | None = None,
    on: str = "local",
    is_prediction: bool = False,
) -> Run:
    """Return the run at `location`, with options and settings in `values`, and with the settings for this machine.

    `location` is a run, a folder of its weights or one of its checkpoints; with `recipe` also weights without a run.
    For a prediction, the notes do not name paths and options that only predictions have.

    Raises UsageError for any other path, and as `StoredPlan.reopen` does.
    """
    if on not in targets.PROBED:
        raise UsageError(f"a saved model can only be used on this machine, not on {on}", hint="use local or cpu")
    target, (directory, weights) = targets.find(on), _find_weights(location, has_recipe=recipe is not None)
    if directory is None:
        assert recipe is not None
        loaded, settings = choose(recipe, values)
        run = Run(
            directory=None,
            weights=weights,
            loaded=loaded,
            settings=settings,
            stored=None,
            values=values,
            target=target,
            notes=(),
        )
    else:
        run = reopen(directory, weights, values, target, recipe=recipe, is_prediction=is_prediction)
    settings, notes = _adapt_settings(run)
    return replace(run, settings=settings, notes=(*run.notes, *notes))


def reopen(
    directory: RunDirectory,
    weights: Path,
    values: Mapping[str, object],
    target: Target,
    *,
    recipe: str | object | None = None,
    is_prediction: bool = False,
) -> Run:
    """Return the run in a directory without links, with `values` and its own settings. Raises as `open_run` does."""
    plan = directory.plan()
    assert plan is not None
    reopened = plan.reopen(directory.plan_file, values, recipe)
    if is_prediction and (absent := _absent_paths(reopened.loaded, values)):
        reopened = plan.reopen(directory.plan_file, {**values, **absent}, recipe)
    stored_options, options = config.as_json(reopened.stored.options), config.as_json(reopened.loaded.options)
    unmentioned = {*reopened.loaded.paths, *reopened.loaded.parts.use.prediction_options} if is_prediction else set()
    notes = [
        f"{name}={options[name]}, but the run was trained with {value}"
        for name, value in stored_options.items()
        if options[name] != value and name not in unmentioned
    ]
    if plan.is_changed:
        notes.append(f"{directory.plan_file} has changed since it was written: its digest does not match its content")
    notes += reopened.changes
    return Run(
        directory=directory,
        weights=weights,
        loaded=reopened.loaded,
        settings=reopened.settings,
        stored=reopened.stored,
        values=values,
        target=target,
        notes=tuple(notes),
    )


def _find_weights(path: Path, *, has_recipe: bool) -> tuple[RunDirectory | None, Path]:
    """Return the run and the weights at `path`: a run's folder of weights, a checkpoint, or the directory of a run.

    Of a run they are its best weights, else its last ones, else those of its newest checkpoint. If the recipe is known
    (`has_recipe`), weights may also be without a run.

    Raises UsageError for any other path, and for a run that has saved no weights.
    """
    from shoestring.training.checkpoint.light import has_weights
    from shoestring.training.checkpoint.weights import is_checkpoint, newest

    path = path.absolute()
    require_present(path, "pass a run's directory, for example runs/NAME")
    run = RunDirectory(path)
    if run.plan_file.exists():
        run.require_own()
        for folder in (run.best, run.light):
            if has_weights(folder):
                return run, folder
        checkpoint = newest(run.checkpoints)
        if checkpoint is None:
            raise UsageError(f"the run in {path} has saved no weights yet", hint="train it: shoestring train")
        return run, checkpoint
    # Full checkpoints and the weights of epochs, in light/, have the same names.
    run = RunDirectory(path.parent.parent if is_checkpoint(path) else path.parent)
    if run.plan_file.exists():
        run.require_own()
        if has_weights(path) or (is_checkpoint(path) and path.parent == run.checkpoints):
            return run, path
    if has_recipe:
        return None, path
    raise UsageError(
        f"{path} is neither a run nor the weights of a run",
        hint=usage_hint(path)
        or naming_folds(
            path,
            "pass a run's directory, its best or light, or one of its checkpoints; for weights without the plan.json "
            "of a run, name the recipe that defines the model: --recipe NAME",
        ),
    )


def _find_preprocessing(path: Path) -> Path | None:
    """Return the folder with the preprocessing of weights without a run: within them as in an export, or beside."""
    candidates = (path / PREPROCESSING.name, path.parent / PREPROCESSING.name)
    return next((folder for folder in candidates if (folder / MANIFEST).is_file()), None)


def _absent_paths(loaded: LoadedRecipe, values: Mapping[str, object]) -> dict[str, None]:
    """Return the options of the training data that are not set for other data, and whose paths are not here, as None.

    A run on Kaggle has the paths of its session.
    """
    if "data" not in values:
        return {}
    inherited = [name for name in loaded.parts.data.data_options if name not in values]
    return {name: None for name in inherited if name in loaded.paths and not Path(loaded.paths[name]).exists()}


def _adapt_settings(run: Run) -> tuple[Settings, tuple[str, ...]]:
    """Return the run's settings for this device, with a note if it does not support the run's precision."""
    settings = run.settings.replace(micro_batch=run.settings.micro_batch or run.loaded.effective_batch)
    precision, device = settings.precision or "fp32", run.target.device
    if "precision" in run.values or precision in device.precisions:
        return settings.replace(precision=precision), ()
    note = f"precision is fp32: {device.title} does not support {precision}, with which the run was trained"
    return settings.replace(precision="fp32"), (note,)
