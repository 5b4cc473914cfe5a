"""A run of a recipe that an installed package has: killed and continued, used, and refused with another package."""

import json
import os
import subprocess
import sys

import pytest
import torch

import shoestring
from shoestring.api.kaggle import preview
from shoestring.base.errors import UsageError
from shoestring.cli.commands import app
from tests.recipe.packages import install

RECIPES = "line = line_fitting:LineFitting"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder with a package."""
    folder = tmp_path_factory.mktemp("site")
    install(folder, "line-fitting", "1.2", recipes=RECIPES)
    return folder


def train(site, run, *arguments, **environment):
    command = [sys.executable, "-m", "shoestring", "train", "line", "--run", str(run), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(site), "SHOESTRING_PROBE": "0", **environment}
    return subprocess.run(command, capture_output=True, text=True, env=environment)


@pytest.fixture(scope="module")
def run(site, tmp_path_factory):
    """A run that was killed, and continued to the bits of one that was not."""
    folder = tmp_path_factory.mktemp("runs")
    whole = train(site, folder / "whole", "--set", "save_every_updates=2")
    assert whole.returncode == 0, whole.stderr
    killed = train(site, folder / "killed", "--set", "save_every_updates=2", KILLED_AT="7")
    assert killed.returncode != 0 and "finished" not in (folder / "killed" / "state.json").read_text()
    continued = train(site, folder / "killed")
    assert continued.returncode == 0, continued.stderr
    weights = [(folder / name / "light" / "model.safetensors").read_bytes() for name in ("whole", "killed")]
    assert weights[0] == weights[1]
    return folder / "killed"


@pytest.fixture
def with_package(site, monkeypatch):
    monkeypatch.syspath_prepend(site)


def test_run_names_the_package(run):
    plan = json.loads((run / "plan.json").read_text())
    assert (plan["recipe"], plan["package"]) == ("line", {"distribution": "line-fitting", "version": "1.2"})


def test_package_is_used_without_being_named(run, with_package, tmp_path):
    model = shoestring.load(run)
    (row,) = model.predict([[1.0] * 8])
    assert row["prediction"] == pytest.approx(model.model(torch.ones(1, 8)).item())
    assert shoestring.export(run, to="safetensors", out=tmp_path / "export").files
    assert shoestring.replay(run, update=3).update == 3


def test_another_version_is_refused_or_reported(run, tmp_path, monkeypatch):
    """The checkout of the recipe is that of another version, as after `pip install --upgrade`."""
    install(tmp_path, "line-fitting", "1.3", recipes=RECIPES)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match=r"is of line-fitting 1\.2, and here of line-fitting 1\.3") as error:
        shoestring.load(run)
    assert "line-fitting==1.2" in error.value.hint and error.value.hint.endswith("or name the recipe: --recipe line")
    with pytest.raises(UsageError, match=r"here of line-fitting 1\.3"):
        app(["plan", "--config", str(run / "run.toml")], standalone_mode=False)
    loaded = shoestring.load(run, recipe="line")
    assert "the recipe is now of line-fitting 1.3, and the run of line-fitting 1.2" in loaded.notes
    state = json.loads((run / "state.json").read_text())
    (run / "state.json").write_text(json.dumps({**state, "status": "paused"}))
    with pytest.raises(UsageError, match="would not continue bit for bit") as error:
        shoestring.train("line", run=run)
    assert "recipe package: saved with line-fitting 1.2, now line-fitting 1.3" in error.value.problems


def test_another_distribution_is_refused(run, tmp_path, monkeypatch):
    install(tmp_path, "strangers", "1.2", recipes="line = strangers:LineFitting")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match=r"is of line-fitting 1\.2, and here of strangers 1\.2"):
        shoestring.load(run)


def test_uninstalled_package_is_named(run):
    for use in (lambda: shoestring.load(run), lambda: shoestring.train("line", run=run)):
        with pytest.raises(UsageError, match=r"line of line-fitting 1\.2, which is not installed here") as error:
            use()
        assert error.value.hint.endswith("install line-fitting==1.2")


@pytest.mark.slow
def test_plan_proposes_what_the_options_of_a_package_declare(with_package):
    plan = shoestring.plan("line", on="t4", width=2**27, optimizer_kernel="foreach")
    assert not plan.fits
    (proposal,) = [proposal for proposal in plan.proposals if "width" in proposal.values]
    assert proposal.name == "a narrower layer" and proposal.fits


def test_package_is_sent_to_kaggle_and_not_carried_by_a_notebook(with_package, tmp_path):
    answer = preview("line", run=tmp_path / "run")
    assert "line_fitting-1.2-py3-none-any.whl" in {file["path"] for file in answer["files"]}
    with pytest.raises(UsageError, match=r"the recipe line is of line-fitting 1\.2"):
        shoestring.notebook("line", out=tmp_path / "notebook")
