"""A run as a value: what is known once it is open, and what is verified before."""

from pathlib import Path

import pytest

from shoestring.base.errors import CheckpointError, UsageError
from shoestring.recipe.finding import choose
from shoestring.runs.model import load_model
from shoestring.runs.replay.replay import open_replayable
from shoestring.runs.run import open_run
from shoestring.training.checkpoint.store import Store
from shoestring.training.run_directory.directory import RunDirectory
from shoestring.training.run_directory.stored import StoredPlan, StoredState

RECIPE = """
from pathlib import Path

from tests import mine

Path(__file__).with_name("executed").touch()

class Mine(mine.Mine):
    pass
"""


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """The file of a recipe, in which a file beside it shows whether it was executed."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    file = tmp_path / "mine.py"
    file.write_text(RECIPE)
    return file


@pytest.fixture
def run(recipe, tmp_path):
    """The directory of a run with a checkpoint, as it comes from another machine."""
    loaded, _ = choose(str(recipe), {})
    directory = RunDirectory(tmp_path / "run")
    directory.create()
    StoredPlan.from_recipe(loaded, {"settings": {"precision": "fp32"}}).write(directory.plan_file)
    Store(directory.checkpoints).save(3, {"model": loaded.recipe.model().state_dict()})
    (tmp_path / "executed").unlink()
    return directory


def open_both(run, recipe=None):
    """Open a run in the two ways in which it can be opened."""
    return [lambda: open_run(run.path, {}, recipe=recipe), lambda: open_replayable(run.path, 1, {}, recipe=recipe)]


def test_recipe_is_executed_after_links_and_trust_were_verified(run, recipe):
    link, executed = run.path / "failed", recipe.with_name("executed")
    link.symlink_to(recipe)
    for opens in open_both(run, str(recipe)):
        with pytest.raises(UsageError, match="is a symbolic link to"):
            opens()
    link.unlink()
    for opens in open_both(run):
        with pytest.raises(UsageError, match="would execute the file"):
            opens()
    assert not executed.exists()
    for opens in open_both(run, str(recipe)):
        assert opens().notes == ()
    assert executed.exists()


def test_settings_are_those_of_the_run_and_of_the_command(run, recipe):
    opened = open_run(run.path, {"micro_batch": 2}, recipe=str(recipe), on="cpu")
    assert (opened.settings.micro_batch, opened.settings.precision) == (2, "fp32")
    assert opened.values == {"micro_batch": 2} and opened.target.name == "cpu"
    assert open_run(run.path, {}, recipe=str(recipe)).settings.micro_batch == opened.loaded.effective_batch


def test_changed_plan_is_a_note(run, recipe):
    run.plan_file.write_text(run.plan_file.read_text().replace('"precision": "fp32"', '"precision": "bf16"'))
    for opens in open_both(run, str(recipe)):
        [note, *_] = opens().notes
        assert note == f"{run.plan_file} has changed since it was written: its digest does not match its content"


def test_weights_are_verified_when_they_are_loaded(run, recipe):
    opened = open_run(run.path, {}, recipe=str(recipe))
    assert opened.weights == run.checkpoints / "update-00000003" and opened.is_checkpoint
    model = load_model(opened)
    assert model.update == 3 and model.notes == () and not model.module.training
    assert model.describe_origin() == "the weights of update 3 (update-00000003); the progress of the run is not known"
    StoredState(status="paused", update=3, total_updates=9).write(run.state_file)
    assert model.describe_origin().endswith("the run is not finished: it is paused at update 3 of 9")
    file = Path(opened.weights) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\1")
    with pytest.raises(CheckpointError):
        load_model(open_run(run.path, {}, recipe=str(recipe)))


def test_weights_without_a_run(recipe, run):
    opened = open_run(run.checkpoints, {}, recipe=str(recipe))
    assert opened.directory is None and opened.stored is None and not opened.is_checkpoint
