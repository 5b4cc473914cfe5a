"""Training the run of one fold, with the plan of the first."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from shoestring.base import config
from shoestring.recipe.finding import choose, find
from shoestring.recipe.folds import Fold, values_of
from shoestring.recipe.options import LoadedRecipe, own_fields
from shoestring.runs.train.launch import launch
from shoestring.runs.train.session import LaunchRequest, local_target
from shoestring.runs.train.starting import write_config_file
from shoestring.training.checkpoint.identity import new_id
from shoestring.training.run_directory.directory import RunDirectory
from shoestring.training.run_directory.fold_runs import run_of
from shoestring.training.run_directory.stored import StoredPlan
from shoestring.training.session.outcome import Outcome

Launch: TypeAlias = Callable[[str | object, Mapping[str, object], LaunchRequest], Outcome]
"""Trains a run, as `runs.train.launch.launch` does in this process."""


def train_fold(
    recipe: str | object,
    values: Mapping[str, object],
    request: LaunchRequest,
    fold: Fold,
    launch_run: Launch = launch,
) -> Outcome:
    """Start or continue the run of a fold."""
    directory, first = RunDirectory(request.run), run_of(request.run.parent, Fold(1, fold.count))
    loaded = find(recipe, is_new=not directory.plan_file.exists())
    of_fold = {**values, **fold_values(loaded, fold)}
    stored = first.plan()
    # With copies elsewhere, the run is looked for there first.
    if stored and not directory.plan_file.exists() and request.from_url is None:
        _take_over_plan(stored, directory, loaded, of_fold, request)
    return launch_run(recipe, of_fold, request)


def fold_values(loaded: LoadedRecipe, fold: Fold) -> dict[str, object]:
    """Return the options with which the recipe trains on all but this fold."""
    return values_of(fold, own_fields(loaded))


def _take_over_plan(
    first: StoredPlan,
    directory: RunDirectory,
    loaded: LoadedRecipe,
    values: Mapping[str, object],
    request: LaunchRequest,
) -> None:
    """Begin a run with the plan of the first fold, if that is for this device."""
    plan: Mapping[str, Any] = first.plan or {}
    if plan.get("device") != local_target(request.on).device.title:
        return
    fold_options = fold_values(loaded, Fold(1, 2)).keys()
    options = {**(first.options or {}), **{name: values[name] for name in fold_options}}
    of_fold, _ = choose(loaded, options, stored=True)
    settings = first.reopen(directory.plan_file, {}, loaded).settings
    directory.create()
    plan = {**plan, "options": config.as_json(of_fold.options)}
    StoredPlan.from_recipe(of_fold, plan, run=new_id()).write(directory.plan_file)
    write_config_file(
        directory,
        of_fold,
        settings,
        values,
        on=request.on,
        limit_seconds=request.limit_seconds,
        disk_bytes=request.disk_bytes,
    )
