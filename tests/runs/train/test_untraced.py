"""Runs of recipes whose update cannot be traced: estimating says no, and training goes on."""

import dataclasses
import json

import pytest

import shoestring
from shoestring.base.errors import RunError, TraceError
from shoestring.hardware import targets
from shoestring.runs.check import attempts, measuring
from tests.sessions import final_checkpoint

RECIPE = """
import torch
from torch import nn

class Mine:
    epochs = 2
    effective_batch = 8
    def model(self): return nn.Linear(3, 1)
    def batch(self, size): return torch.ones(size, 3)
    def data(self): return torch.ones(20, 3)
    def loss(self, model, batch):
        loss = model(batch).square().mean()
        {line}
        return loss
"""


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """A function that writes a recipe; its microbatches are tried in this process."""

    def run_child(module, request, seconds):
        assert module == attempts.__name__
        stages = []
        attempts.try_sizes(request, stages.append)
        return tuple(stages), ""

    def write(line):
        path = tmp_path / "mine.py"
        path.write_text(RECIPE.format(line=line))
        return str(path)

    monkeypatch.setattr(measuring, "run_child", run_child)
    return write


def test_update_that_cannot_be_traced_is_trained(recipe, tmp_path, capsys):
    path = recipe("loss = loss / 2 if loss > 1 else loss")
    with pytest.raises(TraceError, match="condition") as caught:
        shoestring.estimate(path)
    assert caught.value.hint and "--set micro_batch=N" in caught.value.hint
    paused = shoestring.train(path, run=tmp_path / "run", limit_seconds=1e-9)
    assert paused.status == "paused"
    assert "cannot be estimated" in capsys.readouterr().err
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())["plan"]
    assert (plan["verdict"], plan["settings"]["micro_batch"]) == ("not estimated", 2)
    assert [attempt["micro_batch"] for attempt in plan["measured"]] == [2]  # a short session has no time for more
    finished = shoestring.train(path, run=tmp_path / "run")
    assert (finished.status, finished.update) == ("finished", 6)
    notes = [line for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines() if "not estimated" in line]
    assert len(notes) == 2
    assert "not estimated" in shoestring.report(tmp_path / "run").read_text()
    assert shoestring.train(path, run=tmp_path / "same", micro_batch=2).status == "finished"
    assert final_checkpoint(tmp_path / "same") == final_checkpoint(tmp_path / "run")


def test_error_of_the_recipe_is_raised_before_the_run_starts(recipe, tmp_path):
    with pytest.raises(RunError, match="KeyError: 'labels'") as caught:
        shoestring.train(recipe("loss = {}['labels']"), run=tmp_path / "run")
    assert "mine.py:13 in loss" in caught.value.problems[0]
    assert not (tmp_path / "run" / "plan.json").exists()


@pytest.mark.slow
def test_upper_estimate_that_does_not_fit_is_not_the_end(recipe, tmp_path, monkeypatch):
    local = targets.find("local")
    small_target = dataclasses.replace(local, device=dataclasses.replace(local.device, memory_bytes=2**20))
    monkeypatch.setattr(targets, "find", lambda name: small_target)
    path = recipe("loss = model(batch)[batch[:, 0] > 0].square().mean()")
    assert shoestring.train(path, run=tmp_path / "run", epochs=1).status == "finished"
    reasons = json.loads((tmp_path / "run" / "plan.json").read_text())["plan"]["reasons"]
    assert "the upper estimate of" in reasons[0] and "`x[mask]`" in reasons[1]


def test_recipe_that_exists_only_in_this_process_is_not_tried(tmp_path):
    from tests.mine import Mine

    class Reading(Mine):
        def loss(self, model, batch):
            return super().loss(model, batch) * float(batch.numpy().max() > 0)

    assert shoestring.train(Reading(), run=tmp_path).status == "finished"
    plan = json.loads((tmp_path / "plan.json").read_text())["plan"]
    assert plan["settings"]["micro_batch"] == 4 and plan["measured"] == []
