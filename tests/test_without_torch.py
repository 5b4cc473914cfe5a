"""Where torch is not installed, commands that need it are one error, and all others work."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shoestring.cli.commands import app
from tests.slow import slow_except

FINISHED = Path(__file__).parent / "fixtures" / "version_0_1_0" / "finished"
HIDING = """
# Hides libraries from the import system and from the reader of metadata, as if they had never been installed.
import importlib.metadata
import os
from importlib.machinery import PathFinder

HIDDEN = os.environ["HIDDEN_LIBRARIES"].split()
find_spec, from_name = PathFinder.find_spec, importlib.metadata.Distribution.from_name


def find_spec_of_others(fullname, path=None, target=None):
    return None if fullname.partition(".")[0] in HIDDEN else find_spec(fullname, path, target)


def from_name_of_others(name):
    if name in HIDDEN:
        raise importlib.metadata.PackageNotFoundError(name)
    return from_name(name)


PathFinder.find_spec = staticmethod(find_spec_of_others)
importlib.metadata.Distribution.from_name = staticmethod(from_name_of_others)
"""
NEEDING_TORCH = [
    "estimate temporal --on t4",
    "plan temporal --on kaggle-t4",
    "plan temporal --on kaggle-t4 --for predict",
    "train temporal --run run",
    f"evaluate {FINISHED}",
    f"predict {FINISHED} --set data=x.csv",
    f"export {FINISHED} --to safetensors --out folder",
    f"replay {FINISHED} --update 3",
    "check --measure rates.json",
]
REHEARSING = ["rehearse temporal --on t4", "rehearse --prepare"]
NOT_NEEDING_TORCH = [
    "--version",
    "--help",
    "targets",
    "recipes",
    "recipes legal",
    f"watch {FINISHED} --once",
    f"report {FINISHED} --out report.html",
    f"measured {FINISHED}",
    "notebook temporal --out notebook",
    "kaggle start temporal --run run --dry-run",
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A function that runs the command line without some libraries."""
    site = tmp_path_factory.mktemp("site")
    (site / "sitecustomize.py").write_text(HIDING)
    folder = tmp_path_factory.mktemp("folder")

    def run(command, hidden="torch", **environment):
        environment = {**os.environ, "PYTHONPATH": str(site), "HIDDEN_LIBRARIES": hidden, **environment}
        arguments = [Path(sys.executable).with_name("shoestring"), *command.split()]
        return subprocess.run(arguments, capture_output=True, text=True, env=environment, cwd=folder)

    return run


def test_the_library_is_hidden(run):
    """Otherwise the tests below would prove nothing."""
    process = run("check --json")
    findings = {finding["name"]: finding for finding in json.loads(process.stdout)["findings"]}
    assert process.returncode == 1
    assert "No module named 'torch'" in findings["PyTorch"]["said"]
    assert findings["packages"]["said"] == "torch is not installed (required: torch>=2.10,<3)"
    assert findings["packages"]["hint"].startswith("pip install 'torch>=2.10,<3'")


@pytest.mark.parametrize(
    "command", slow_except(NOT_NEEDING_TORCH, *(command for command in NOT_NEEDING_TORCH if "notebook" not in command))
)
def test_commands_that_need_no_torch(run, command):
    process = run(command)
    assert process.returncode == 0, process.stderr
    assert process.stdout


@pytest.mark.parametrize("command", NEEDING_TORCH)
def test_commands_that_need_torch_are_one_error(run, command):
    process = run(command)
    assert (process.returncode, process.stdout) == (2, "")
    error, hint, *_ = process.stderr.splitlines()
    assert error == "error: torch is not installed (required: torch>=2.10,<3)"
    assert hint.startswith("hint: pip install 'torch>=2.10,<3'")
    assert "Traceback" not in process.stderr


@pytest.mark.parametrize("command", REHEARSING)
def test_rehearsals_need_the_torch_of_the_environment_that_they_run_in(run, command):
    process = run(command)
    assert (process.returncode, process.stdout) == (2, "")
    error, hint, *_ = process.stderr.splitlines()
    assert (error, hint) == ("error: PyTorch is not installed in this environment", "hint: pip install torch")


def test_every_command_is_in_one_of_the_lists():
    tested = {command.split()[0] for command in (*NEEDING_TORCH, *NOT_NEEDING_TORCH, *REHEARSING)}
    commands = {command.callback.__name__ for command in app.registered_commands}
    assert commands <= tested


def test_completion_needs_no_torch(run):
    process = run("", _SHOESTRING_COMPLETE="complete_bash", COMP_WORDS="shoestring\nplan\nte", COMP_CWORD="2")
    assert process.stdout.split() == ["temporal"], process.stderr


@pytest.mark.parametrize("library", ["typer", "rich"])
def test_a_missing_library_of_the_command_line_itself(run, library):
    process = run("targets", hidden=library)
    assert (process.returncode, process.stdout) == (2, "")
    assert process.stderr.startswith(f"error: {library} is not installed (required: {library}>=")
    assert f"hint: pip install '{library}>=" in process.stderr
