"""`check` and `train` of each recipe at the size tiny: both succeed, or both fail with the same message."""

import json
import re

import pytest

from shoestring.runs.check import preflight
from shoestring.runs.check.probe import probing
from tests.docs import guide_data
from tests.runs.check.probe import in_process
from tests.runs.check.sample_facts import make_facts
from tests.slow import slow_except

OPTIONS = {
    "vqa": ("data=vqa", "effective_batch=4", "beams=1"),
    "legal": ("data=judgments", "effective_batch=4"),
    "temporal": ("data=bars/merged_M15_multiTF.csv", "effective_batch=4", "subset=64"),
    "chart": ("data=charts", "effective_batch=4", "generations=4", "completion_len=4", "rewards=digits"),
    "cloud": ("data=tiles", "table=tables/data.csv", "effective_batch=4"),
    "finetune": ("effective_batch=4", "answer_tokens=4", "subset=16"),
}
COMMON = ("size=tiny", "max_updates=1", "micro_batch=4", "precision=fp32", "checkpointing=no")
"""Options of a short run, and settings with which its plan has nothing to choose."""

BROKEN_LOSS = """
import functools
from torch._subclasses.fake_tensor import FakeTensor
from shoestring_recipes.{module} import {name}

def broken(loss):
    @functools.wraps(loss)
    def changed(self, model, batch, *values, **named):
        if not isinstance(next(model.parameters()), FakeTensor):  # a plan does not see it
            raise ValueError("an error of the recipe")
        return loss(self, model, batch, *values, **named)
    return changed

class Mine({name}):
    loss = broken({name}.loss)
"""

BROKEN_REWARD = """
from shoestring_recipes.chart import Chart

class Mine(Chart):
    def rewards(self):
        return {"mine": self.reward}
    def reward(self, completion, annotations):
        raise ValueError("an error of the recipe")
"""

PLACE = re.compile(r"mine\.py(?::|, line )(\d+)")
"""The line of the recipe's file, as `train` and as `check` write it."""

CLASSES = {"vqa": "VQA", "legal": "Legal", "temporal": "Temporal", "cloud": "Cloud", "finetune": "Finetune"}


@pytest.fixture(autouse=True)
def here(monkeypatch):
    """A healthy machine, on whose CPU the updates of a check run in this process."""
    monkeypatch.setattr(probing, "run_child", in_process.run)
    monkeypatch.setattr(preflight, "collect_facts", lambda *_: make_facts(on="cpu", platform=None, driver=None))


@pytest.fixture
def commands(run_command, tmp_path, monkeypatch):
    """Return the failed findings of a check as {name: message}, and the exit status and stderr of training."""
    monkeypatch.chdir(tmp_path)

    def run(name, reference):
        if write := getattr(guide_data, f"write_{name}", None):
            write(tmp_path)
        settings = ["--on", "cpu", *(word for option in (*COMMON, *OPTIONS[name]) for word in ("--set", option))]
        status, out, err = run_command("check", reference, *settings, "--json")
        assert out, err
        failed = {item["name"]: item["said"] for item in json.loads(out)["findings"] if item["status"] == "fail"}
        assert status == bool(failed)
        trained, _, err = run_command("train", reference, "--run", "run", *settings)
        return failed, trained, err

    return run


@pytest.mark.parametrize("name", slow_except(list(OPTIONS), "temporal"))
def test_a_good_recipe_passes_both(name, commands):
    failed, status, err = commands(name, name)
    assert (failed, status) == ({}, 0), err


@pytest.mark.parametrize("name", slow_except(list(OPTIONS), "temporal"))
def test_a_broken_recipe_fails_both_with_the_same_message(name, commands, tmp_path):
    parent = CLASSES.get(name)
    (tmp_path / "mine.py").write_text(BROKEN_LOSS.format(module=name, name=parent) if parent else BROKEN_REWARD)
    failed, status, err = commands(name, "mine.py")
    assert list(failed) == ["update"] and status == 1, (failed, err)
    for message in (failed["update"], err):
        assert "ValueError" in message and "an error of the recipe" in message, (failed, err)
    lines = [PLACE.findall(message)[-1] for message in (failed["update"], err)]
    assert lines[0] == lines[1], (failed, err)
