"""Failures of a recipe's code on the command line: one error that names the line, and no Python traceback."""

import json
from pathlib import Path

import pytest

import shoestring
from shoestring.base import failures
from shoestring.base.errors import RunError, UsageError

RECIPE = """
import sys
from helper import fail
import torch
from torch import nn

class Mine:
    epochs = 1
    effective_batch = 4
    def model(self): return nn.Linear(3, 1)
    def batch(self, size): return torch.zeros(size, 3)
    def loss(self, model, batch): return model(batch).square().mean()
    def evaluate(self, model, batches):
        return {"loss": fail()}
    def data(self): return {"train": torch.ones(10, 3), "validation": torch.ones(4, 3)}
"""


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "helper", raising=False)
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    path = tmp_path / "mine.py"
    path.write_text(RECIPE)
    return path


def write_helper(recipe, statement):
    recipe.with_name("helper.py").write_text(f"def fail():\n    {statement}\n")


def test_error_in_training_names_the_lines_of_the_user(recipe, run_command, monkeypatch):
    write_helper(recipe, "raise KeyError('a\\x1b[31m\\nerror: forged')")
    run = recipe.with_name("run")
    status, out, err = run_command("train", recipe, "--run", run)
    assert (status, out) == (1, "")
    lines = err[err.index("error:") :].splitlines()
    assert lines[:3] == [
        "error: KeyError: 'a\\x1b[31m\\nerror: forged'",
        f'  - {recipe}:14 in evaluate: return {{"loss": fail()}}',
        f"  - {recipe.with_name('helper.py')}:2 in fail: raise KeyError('a\\x1b[31m\\nerror: forged')",
    ]
    assert lines[3].startswith("hint: ") and lines[4].startswith("see docs/guides/troubleshooting.md#")
    assert lines[5] == f"the whole traceback is in {run}/failed/traceback.txt"
    assert "Traceback" not in err
    assert "in evaluate" in (run / "failed" / "traceback.txt").read_text()
    state = json.loads((run / "state.json").read_text())
    assert state["status"] == "failed" and state["reason"].startswith("KeyError")
    monkeypatch.setenv("SHOESTRING_TRACEBACK", "1")
    _, _, err = run_command("train", recipe, "--run", run)
    assert "Traceback (most recent call last):" in err and "\x1b" not in err
    write_helper(recipe, "return 1.0")
    status, _, err = run_command("train", recipe, "--run", run)
    assert status == 2 and "--allow-inexact" in err  # another helper may have another result
    assert run_command("train", recipe, "--run", run, "--allow-inexact")[0] == 0  # the checkpoint is intact


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("__import__('sys').exit(7)", "ended Python with status 7"),
        ("raise type('Odd', (BaseException,), {})", "raised Odd"),
    ],
)
def test_end_of_python_in_training_is_an_error(recipe, statement, message):
    write_helper(recipe, statement)
    run = recipe.with_name("run")
    with pytest.raises(RunError, match=f"the recipe's code {message} at .*helper.py:2 in fail"):
        shoestring.train(str(recipe), run=run)
    state = json.loads((run / "state.json").read_text())
    assert state["status"] == "failed" and message in state["reason"]
    assert (run / "failed" / "traceback.txt").exists() == ("status 7" in message)


AT_LOADING = {
    "import": ("import sys\nsys.exit(7)\nclass Mine(Base):", "could not be run: it ended Python with status 7 at"),
    "odd": (
        "class Odd(BaseException): pass\nraise Odd('odd')\nclass Mine(Base):",
        "could not be run: it raised Odd at",
    ),
    "constructor": ("class Mine(Base):\n    def __init__(self): raise ValueError('no')", "options: ValueError: no at"),
    "exit": ("class Mine(Base):\n    def __init__(self): exit()", "options: it ended Python with status 0 at"),
    "option": ("class Mine(Base):\n    @property\n    def epochs(self): raise KeyError(3)", "options: KeyError: 3 at"),
}
METHOD = "\n    def loss(self, model, batch): ...\n"


@pytest.mark.parametrize("name", AT_LOADING)
def test_error_at_loading_is_invalid_usage(name, tmp_path, run_command):
    code, message = AT_LOADING[name]
    recipe = tmp_path / "mine.py"
    recipe.write_text("class Base:\n    def model(self): ...\n    def batch(self, size): ...\n" + code + METHOD)
    status, out, err = run_command("recipes", recipe)
    assert (status, out) == (2, "")
    assert err.startswith("error: ") and f"{message} {Path(recipe)}:" in err
    assert "Traceback" not in err


def test_end_of_python_in_tracing_is_an_error(recipe, run_command):
    write_helper(recipe, "raise SystemExit(7)")
    recipe.write_text(RECIPE.replace("model(batch).square()", "fail()"))
    status, _, err = run_command("plan", recipe, "--on", "t4")
    assert status == 1 and err.startswith("error: the recipe's code ended Python with status 7 at ")
    assert "helper.py:2 in fail" in err


def test_error_of_a_data_worker_names_its_lines(tmp_path):
    message = (
        "Caught ValueError in DataLoader worker process 1.\n"
        "Original Traceback (most recent call last):\n"
        '  File "/venv/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py", line 358, in _worker_loop\n'
        "    data = fetcher.fetch(index)\n"
        '  File "/home/me/mine.py", line 14, in __getitem__\n'
        "    raise ValueError('sample 7: bad')\n"
        "ValueError: sample 7: bad\n"
    )
    error = failures.describe(ValueError(message))
    assert error.message == "ValueError: sample 7: bad"
    assert error.problems == ("/home/me/mine.py:14 in __getitem__: raise ValueError('sample 7: bad')",)


def test_defect_is_named_as_one():
    class SilentError(Exception):
        def __str__(self):
            raise ValueError

    error = failures.describe(SilentError())
    assert error.message == "SilentError: (no message)" and "defect of Shoestring" in error.hint


@pytest.mark.parametrize(
    "call",
    [
        lambda: shoestring.train("temporal", run="a\0b"),
        lambda: shoestring.evaluate("a\0b"),
        lambda: shoestring.report("a\0b"),
        lambda: shoestring.check(run="a\0b"),
        lambda: shoestring.plan("temporal", calibrate="a\0b"),
        lambda: shoestring.plan("a\0b.py"),
        lambda: shoestring.plan("temporal", "t4", data="a\0b"),
        lambda: shoestring.plan("temporal", "t4", limit_seconds=float("nan")),
        lambda: shoestring.train("temporal", run="x", disk_bytes=-1),
        lambda: shoestring.plan("temporal", "t4", usd_per_hour=float("inf")),
        lambda: shoestring.plan("temporal", "t4", effective_batch=10**30),
        lambda: shoestring.plan("temporal", "t4", subset=float("nan")),
    ],
)
def test_values_that_nothing_can_have_are_invalid_usage(call):
    with pytest.raises(UsageError):
        call()
