"""What is read of an environment and of its PyTorch without importing it."""

import dataclasses
import sys
from pathlib import Path

import pytest
import torch

from shoestring.base.errors import UsageError
from shoestring.planning.simulator.torch_builds import TorchBuild, look, read_build, require_simulated, require_version


def test_this_environment_is_read_as_torch_tells_it():
    interpreter = look(Path(sys.executable))
    assert interpreter.python == f"{sys.version_info.major}.{sys.version_info.minor}"
    assert interpreter.torch.version == torch.__version__
    assert interpreter.torch.cuda == torch.version.cuda
    assert interpreter.torch.folder == Path(torch.__file__).parent
    require_simulated(interpreter)


def test_file_named_torch_in_the_current_folder_is_not_pytorch(tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text("raise SystemExit('executed')")
    monkeypatch.chdir(tmp_path)
    assert look(Path(sys.executable)).torch.folder == Path(torch.__file__).parent


def test_what_cannot_be_started_is_named(tmp_path):
    with pytest.raises(UsageError, match="cannot be started"):
        look(tmp_path / "python")


def test_version_file_of_a_build_with_cuda_is_read(tmp_path):
    lines = ["from typing import Optional", "__version__ = '2.10.0+cu128'", "cuda: Optional[str] = '12.8'"]
    (tmp_path / "version.py").write_text("\n".join(lines))
    build = read_build(tmp_path)
    assert (build.version, build.release, build.cuda, build.cuda_number) == ("2.10.0+cu128", "2.10.0", "12.8", 12080)


@pytest.mark.parametrize("text", ["", "__version__ = 3\n", "__version__ = (", "\0"])
def test_damaged_version_file_is_no_build(tmp_path, text):
    (tmp_path / "version.py").write_text(text)
    assert read_build(tmp_path) is None


def test_old_pytorch_is_refused_by_its_version(tmp_path):
    with pytest.raises(UsageError, match=r"PyTorch 2\.5\.1\+cu121 is too old"):
        require_version(TorchBuild(folder=tmp_path, version="2.5.1+cu121", cuda="12.1"))
    require_version(TorchBuild(folder=tmp_path, version="2.10.0+cu128", cuda="12.8"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"system": "darwin"}, "needs Linux, since PyTorch has no CUDA build for darwin"),
        ({"machine": "aarch64"}, "this is aarch64"),
        ({"libc": ""}, "not glibc"),
        ({"python": "3.14"}, r"is Python 3\.14; rehearsals run with 3\.11, 3\.12, 3\.13"),
    ],
)
def test_machine_without_such_a_build_is_refused_by_name(changes, message):
    with pytest.raises(UsageError, match=message) as error:
        require_simulated(dataclasses.replace(look(Path(sys.executable)), **changes))
    assert error.value.hint
