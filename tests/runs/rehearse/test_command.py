"""What a rehearsal runs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from shoestring.base.errors import UsageError
from shoestring.hardware.targets import find
from shoestring.runs.rehearse.command import arguments
from shoestring.runs.rehearse.request import RehearsalRequest

TARGET = find("kaggle-t4")


def test_script_and_module_get_their_arguments(tmp_path):
    script = RehearsalRequest(script=Path("train.py"), arguments=("--lr", "1"), target=TARGET)
    assert arguments(script, tmp_path) == ["train.py", "--lr", "1"]
    module = RehearsalRequest(module="my.train", arguments=("a",), target=TARGET)
    assert arguments(module, tmp_path) == ["-m", "my.train", "a"]


def test_launchers_are_modules(tmp_path):
    request = RehearsalRequest(module="torchrun", arguments=("--nproc-per-node=2", "train.py"), target=TARGET)
    assert arguments(request, tmp_path) == ["-P", "-m", "torch.distributed.run", "--nproc-per-node=2", "train.py"]


def test_recipe_is_trained_on_the_target_in_a_directory_of_the_rehearsal(tmp_path):
    request = RehearsalRequest(recipe="temporal", set_values={"size": "tiny"}, target=TARGET)
    expected = ["-P", "-m", "shoestring", "train", "temporal", "--run", str(tmp_path / "run"), "--on", "kaggle-t4"]
    assert arguments(request, tmp_path) == [*expected, "--set", "size=tiny"]


def test_code_of_a_notebook_runs_without_its_magic_commands(tmp_path):
    cells = [
        {"cell_type": "markdown", "source": ["text"]},
        {"cell_type": "code", "source": ["%matplotlib inline\n", "!pip install x\n", "x = 5 % 3"]},
        {"cell_type": "code", "source": ["if x:\n", "    !ls\n", "print(x)"]},
    ]
    (tmp_path / "train.ipynb").write_text(json.dumps({"cells": cells}))
    request = RehearsalRequest(script=tmp_path / "train.ipynb", arguments=("a",), target=TARGET)
    script, argument = arguments(request, tmp_path)
    assert argument == "a"
    assert subprocess.run([sys.executable, script], capture_output=True, text=True, check=True).stdout == "2\n"


@pytest.mark.parametrize(
    ("cell", "printed"),
    [
        ("%%time\nprint(1)", "1"),
        ("%%writefile other.py\nraise SystemExit(3)", ""),
        ("%%bash\nif true; then exit; fi", ""),
        ("!pip install a \\\n    b \\\n  c\nprint(2)", "2"),
        ("files = !ls\nprint(files)", "[]"),
        ("x = (7\n% 4)\nprint(x)", "3"),
        ("text = '''\n%d!\n'''\nprint(text.strip() % 5)", "5!"),
        ("print?", ""),
    ],
)
def test_magic_commands_are_told_from_python(tmp_path, cell, printed):
    cells = [{"cell_type": "code", "source": cell}]
    (tmp_path / "train.ipynb").write_text(json.dumps({"cells": cells}))
    (script,) = arguments(RehearsalRequest(script=tmp_path / "train.ipynb", target=TARGET), tmp_path)
    result = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == printed
    assert len(Path(script).read_text().splitlines()) == len(cell.splitlines()) + 1


def test_damaged_notebook_is_named(tmp_path):
    (tmp_path / "train.ipynb").write_text("{}")
    request = RehearsalRequest(script=tmp_path / "train.ipynb", target=TARGET)
    with pytest.raises(UsageError, match="cannot be read as a notebook"):
        arguments(request, tmp_path)
