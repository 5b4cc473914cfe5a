"""`check` and `train` of each recipe at the size tiny: both succeed, or both fail with the same message."""

import json
import re

import pytest

from shoestring.check import preflight
from shoestring.check.probe import probing
from tests.check.probe import in_process
from tests.check.sample_facts import make_facts

OPTIONS = {
    "vqa": (),
    "legal": (),
    "temporal": (),
    "chart": ("prompt_len=300", "completion_len=4", "weights=fp32", "generations=2", "effective_batch=2"),
    "cloud": (),
    "finetune": (),
}

BROKEN_LOSS = """
import functools
from torch._subclasses.fake_tensor import FakeTensor
from shoestring.recipes.{module} import {name}

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
from shoestring.recipes.chart import Chart

class Mine(Chart):
    def rewards(self):
        return {"mine": self.reward}
    def reward(self, completion, annotations):
        raise ValueError("an error of the recipe")
"""

FIXED = ("micro_batch=2", "precision=fp32", "checkpointing=no")
"""Settings with which a plan has nothing to choose."""

ERROR = re.compile(r"ValueError in \S*mine\.py, line \d+: an error of the recipe")

CLASSES = {"vqa": "VQA", "legal": "Legal", "temporal": "Temporal", "cloud": "Cloud", "finetune": "Finetune"}


@pytest.fixture(autouse=True)
def here(monkeypatch):
    """A healthy machine, on whose CPU the updates of a check run in this process."""
    monkeypatch.setattr(probing, "run_child", in_process.run)
    monkeypatch.setattr(preflight, "collect_facts", lambda *_: make_facts(on="cpu", platform=None, driver=None))


@pytest.fixture
def commands(run_command, tmp_path):
    """Return the failed findings of a check as {name: message}, and the exit status and stderr of training."""

    def run(recipe, options):
        settings = [word for option in ("size=tiny", *FIXED, *options) for word in ("--set", option)]
        status, out, err = run_command("check", recipe, "--on", "cpu", *settings, "--json")
        assert out, err
        failed = {item["name"]: item["said"] for item in json.loads(out)["findings"] if item["status"] == "fail"}
        assert status == bool(failed)
        run = ("--run", tmp_path / "run", "--on", "cpu", "--set", "max_updates=1")
        trained, _, err = run_command("train", recipe, *run, *settings)
        return failed, trained, err

    return run


@pytest.mark.parametrize("recipe", OPTIONS)
def test_a_good_recipe_passes_both(recipe, commands):
    failed, status, err = commands(recipe, OPTIONS[recipe])
    assert (failed, status) == ({}, 0), err


@pytest.mark.parametrize("recipe", OPTIONS)
def test_a_broken_recipe_fails_both_with_the_same_message(recipe, commands, tmp_path):
    name = CLASSES.get(recipe)
    (tmp_path / "mine.py").write_text(BROKEN_LOSS.format(module=recipe, name=name) if name else BROKEN_REWARD)
    failed, status, err = commands(str(tmp_path / "mine.py"), OPTIONS[recipe])
    assert list(failed) == ["update"] and status == 1, (failed, err)
    first, second = (ERROR.search(" ".join(text.split())) for text in (failed["update"], err))
    assert first and second and first[0] == second[0], (failed, err)
