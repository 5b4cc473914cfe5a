"""`--config` of the commands that take a recipe."""

import json
import os
import subprocess
import sys

import pytest

from shoestring.recipe.finding import VerifiedReference, choose

RECIPE = """
import pathlib
pathlib.Path(__file__).with_name("executed").touch()
import torch
from torch import nn

class Mine:
    epochs = 2
    effective_batch = 4
    def model(self): return nn.Linear(3, 1)
    def batch(self, size): return torch.zeros(size, 3)
    def loss(self, model, batch): return model(batch).square().mean()
    def data(self): return torch.ones(10, 3)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory, with a recipe and a run's directory that someone else could have made."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(RECIPE)
    (tmp_path / "mine.toml").write_text('recipe = "mine.py"\non = "cpu"\n[set]\nepochs = 3\nmicro_batch = 2\n')
    (tmp_path / "run" / "deep").mkdir(parents=True)
    (tmp_path / "run" / "plan.json").touch()
    for path in ("run/run.toml", "run/deep/run.toml"):
        (tmp_path / path).write_text('recipe = "mine.py"\non = "cpu"\n')
    return tmp_path


def test_file_provides_what_the_command_line_leaves_out(run_command, folder):
    (folder / "mine.toml").write_text(
        'recipe = "mine.py"\non = "t4"\nlimit = "2h"\n[set]\nepochs = 3\nmicro_batch = 2\n'
    )
    status, out, err = run_command("plan", "--config", "mine.toml", "--json")
    plan = json.loads(out)
    assert (status, plan["recipe"], plan["target"]) == (0, "mine.py", "t4"), err
    assert (plan["options"]["epochs"], plan["settings"]["micro_batch"]) == (3, 2)
    _, out, _ = run_command(
        "plan", "temporal", "--on", "a100-80", "--config", "mine.toml", "--set", "epochs=5", "--json"
    )
    plan = json.loads(out)
    assert (plan["recipe"], plan["target"]) == ("temporal", "a100-80")
    assert (plan["options"]["epochs"], plan["settings"]["micro_batch"]) == (5, 2)
    assert run_command("estimate", "--config", "mine.toml", "--json")[0] == 0


def test_problem_of_a_value_names_the_file(run_command, folder):
    (folder / "mine.toml").write_text('recipe = "mine.py"\n[set]\nepoch = 3\nema = "many"\nmicro_batch = "x"\n')
    status, _, err = run_command("plan", "--config", "mine.toml", "--set", "micro_batch=y")
    assert status == 2
    for line in (
        '  - epoch: unknown; did you mean epochs? (in mine.toml: epoch = "3")',
        '  - ema=many: expected a number or none (in mine.toml: ema = "many")',
        "  - micro_batch=y: expected an integer or auto",
    ):
        assert line in err.splitlines()
    (folder / "mine.toml").write_text('recipe = "nope"')
    assert "there is no recipe 'nope' (recipe in mine.toml)" in run_command("plan", "--config", "mine.toml")[2]
    assert "Missing argument 'RECIPE'" in run_command("plan")[2]


def test_run_is_repeated_from_its_own_file(run_command, folder):
    status, _, err = run_command("train", "--config", "mine.toml", "--run", "first", "--set", "epochs=1")
    assert status == 0, err
    content = (folder / "first" / "run.toml").read_text()
    assert f'recipe = "{folder / "mine.py"}"' in content and "epochs = 1" in content and "micro_batch = 2" in content
    assert "precision" not in content  # the plan has chosen it
    status, _, err = run_command("train", "--config", "first/run.toml", "--run", "second")
    assert status == 0, err
    weights = [(folder / run / "light" / "model.safetensors").read_bytes() for run in ("first", "second")]
    assert weights[0] == weights[1]
    assert (folder / "second" / "run.toml").read_text() == content
    # A changed recipe is not the one that was trained.
    (folder / "mine.py").write_text(f"{RECIPE}\n")
    (folder / "executed").unlink()
    status, _, err = run_command("train", "--config", "first/run.toml", "--run", "third")
    assert status == 2 and "changed since it was last trained with: mine.py" in err
    assert not (folder / "executed").exists() and not (folder / "third").exists()


def locations(folder):
    """Paths that lead to a configuration file in the run's directory."""
    (folder / "link.toml").symlink_to("run/run.toml")
    (folder / "linked").symlink_to(folder / "run" / "deep")
    (folder / "run" / "out.toml").symlink_to(folder / "mine.toml")
    return ["run/run.toml", "run/deep/run.toml", "link.toml", "linked/run.toml", "run/out.toml", "run/deep/../run.toml"]


def test_file_in_a_run_names_no_recipe_file(run_command, folder):
    commands = (
        *(["plan"], ["estimate"], ["check", "--run", "new"], ["train", "--run", "new"]),
        *(["evaluate", "run"], ["predict", "run", "--set", "data=x"], ["export", "run", "--to", "onnx"]),
        ["replay", "run", "--update", "1"],
    )
    paths = locations(folder)
    for command, path in [*((command, paths[0]) for command in commands), *((commands[0], path) for path in paths)]:
        status, out, err = run_command(*command, "--config", path)
        assert (status, out) == (2, ""), (command, path)
        assert f"{path}, a configuration file in the run's directory {folder / 'run'}," in err
        assert f"would execute the file {folder / 'mine.py'}" in err
        option = "--recipe " if command[0] in ("evaluate", "predict", "export", "replay") else ""
        assert f"name it: {option}{folder / 'mine.py'}" in err
    (folder / "run" / "evil.py").write_text(RECIPE)
    (folder / "run" / "run.toml").write_text('recipe = "../run/evil.py:Mine"')
    os.chdir(folder / "run" / "deep")
    assert run_command("plan", "--config", "../run.toml")[0] == 2
    assert not list(folder.rglob("executed"))


def test_only_verified_contents_are_executed(folder):
    """Not what has replaced the file since it was compared with the trusted digests."""
    content = RECIPE.replace("epochs = 2", "epochs = 9").replace('"executed"', '"verified"')
    reference = VerifiedReference(str(folder / "mine.py"), {"mine.py": content.encode()})
    loaded, _ = choose(reference, {})
    assert loaded.epochs == 9
    assert (folder / "verified").exists() and not (folder / "executed").exists()


def test_directory_of_the_command_is_a_run_whatever_it_contains(run_command, folder):
    (folder / "run" / "plan.json").unlink()
    for command in (["train", "--run", "run"], ["evaluate", "run"]):
        assert run_command(*command, "--config", "run/deep/run.toml")[0] == 2
    assert not (folder / "executed").exists()
    assert run_command("plan", "--config", "run/deep/run.toml")[0] == 0  # nothing is left of a run


def test_command_line_names_the_recipe(run_command, folder):
    assert run_command("plan", "mine.py", "--config", "run/run.toml")[0] == 0
    (folder / "run" / "run.toml").write_text('recipe = "temporal"\n[set]\nsize = "tiny"\n')
    assert run_command("plan", "--config", "run/run.toml")[0] == 0  # a built-in recipe is no file


def test_saved_weights_are_used_on_this_machine(run_command, folder):
    status, _, err = run_command("train", "--config", "mine.toml", "--run", "first")
    assert status == 0, err
    (folder / "mine.toml").write_text('recipe = "mine.py"\non = "kaggle-t4"\nlimit = "9h"\n')
    (folder / "mine.py").write_text(f"{RECIPE}\n")  # not trusted, but named by a file outside of the run
    status, out, err = run_command("evaluate", "first", "--config", "mine.toml", "--json")
    assert status == 0 and "has changed since the run started" in out, err


def test_error_in_the_supervised_process_names_the_file(folder):
    (folder / "mine.toml").write_text('recipe = "mine.py"\non = "cpu"\n[set]\nepoch = 3\n')
    command = [sys.executable, "-m", "shoestring", "train", "--config", "mine.toml", "--run", "new"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 2
    assert result.stderr.count('(in mine.toml: epoch = "3")') == 1
