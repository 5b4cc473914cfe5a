"""The environment that a rehearsal needs: found, refused with the command that makes it, and put together."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from shoestring.base.errors import RunError, UsageError
from shoestring.planning.simulator import prepare, stacks
from shoestring.planning.simulator.pip import run_pip
from shoestring.planning.simulator.torch_builds import TorchBuild, look


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "shoestring" / "simulator"


@pytest.fixture
def cpu_interpreter(monkeypatch):
    """This environment, as if its PyTorch had no CUDA."""
    own = look(Path(sys.executable))
    interpreter = dataclasses.replace(own, torch=dataclasses.replace(own.torch, version="2.13.0+cpu", cuda=None))
    monkeypatch.setattr(prepare, "look", lambda executable: interpreter)
    return interpreter


def write_torch(folder, version="2.13.0+cu130", cuda="'13.0'"):
    (folder / "torch").mkdir(parents=True)
    (folder / "torch" / "version.py").write_text(f"__version__ = {version!r}\ncuda: str = {cuda}\n")
    (folder / "torch" / "__init__.py").write_text("from torch.version import __version__, cuda")


def test_cpu_build_is_refused_with_the_command_that_prepares(cpu_interpreter):
    with pytest.raises(
        UsageError, match=r"needs PyTorch's build with CUDA, and this environment has 2\.13\.0\+cpu"
    ) as error:
        prepare.find()
    assert error.value.hint.startswith("shoestring rehearse --prepare ")


def test_prepared_wheel_is_used(cpu_interpreter, cache):
    write_torch(cache / f"torch-2.13.0-py{cpu_interpreter.python}")
    assert prepare.find()[1].version == "2.13.0+cu130"


def test_wheel_is_installed_once_and_only_if_it_has_cuda(cpu_interpreter, monkeypatch):
    commands = []

    def run_pip(python, arguments):
        commands.append(arguments)
        write_torch(Path(arguments[arguments.index("--target") + 1]), *versions)

    monkeypatch.setattr(prepare, "run_pip", run_pip)
    versions = ("2.13.0+cpu", "None")
    with pytest.raises(RunError, match=r"serves PyTorch 2\.13\.0 as a build without CUDA"):
        prepare.prepare()
    versions = ("2.13.0+cu130", "'13.0'")
    assert prepare.prepare().cuda == prepare.prepare().cuda == "13.0"
    assert [command[-1] for command in commands] == ["torch===2.13.0"] * 2


def test_unknown_and_missing_stacks_are_named():
    with pytest.raises(UsageError, match="no stack 'kagle'") as error:
        prepare.find("kagle")
    assert error.value.hint == "did you mean kaggle?"
    with pytest.raises(UsageError, match="stack kaggle has not been prepared") as error:
        prepare.find("kaggle")
    assert error.value.hint == "shoestring rehearse --prepare --stack kaggle"


def test_stack_without_its_python_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    with pytest.raises(UsageError, match=r"the stack kaggle needs Python 3\.12"):
        stacks.install("kaggle")


def test_prepared_wheel_comes_before_the_packages_of_the_environment(cpu_interpreter, tmp_path):
    write_torch(tmp_path / "wheel")
    build = TorchBuild(folder=tmp_path / "wheel" / "torch", version="2.13.0+cu130", cuda="13.0")
    python = prepare.make_environment(tmp_path / "environment", cpu_interpreter, build)
    code = "import torch, safetensors, shoestring; print(torch.__version__, torch.cuda)"
    printed = subprocess.run([str(python), "-I", "-c", code], check=True, capture_output=True, text=True).stdout
    assert printed == "2.13.0+cu130 13.0\n"
    command = (python.parent / "shoestring").read_text().splitlines()[0]
    assert command == f"#!{python}"


def test_nothing_of_the_current_folder_is_executed(cpu_interpreter, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for name in ("venv", "typing", "json", "logging", "torch", "pip", "ctypes", "sitecustomize", "usercustomize"):
        Path(f"{name}.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w').write({name!r})")
    write_torch(tmp_path / "wheel")
    build = TorchBuild(folder=tmp_path / "wheel" / "torch", version="2.13.0+cu130", cuda="13.0")
    prepare.make_environment(tmp_path / "environment", cpu_interpreter, build)
    with pytest.raises(RunError):
        run_pip(cpu_interpreter.executable, ["install", "--no-index", "--no-deps", "shoestring-no-such-package"])
    assert look(cpu_interpreter.executable).python == cpu_interpreter.python
    assert not (tmp_path / "executed").exists()


def test_commands_start_in_a_folder_with_a_space_and_a_long_name(cpu_interpreter, tmp_path):
    write_torch(tmp_path / "wheel")
    build = TorchBuild(folder=tmp_path / "wheel" / "torch", version="2.13.0+cu130", cuda="13.0")
    python = prepare.make_environment(tmp_path / f"a b {'c' * 150}", cpu_interpreter, build)
    command = [str(python.parent / "shoestring"), "--version"]
    assert "shoestring" in subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_environment_that_has_the_build_is_used_as_it_is(tmp_path):
    interpreter = look(Path(sys.executable))
    assert prepare.make_environment(tmp_path / "new", interpreter, interpreter.torch) == interpreter.executable
    assert not (tmp_path / "new").exists()
