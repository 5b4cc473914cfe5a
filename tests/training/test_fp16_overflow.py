"""Runs in fp16 of models that overflow: the modules in fp32 are found once, and used by everything from then on."""

import json
import os
import signal

import pytest
import torch

import shoestring
from shoestring.base.errors import UsageError
from shoestring.training import fp16_overflow, setup, steps
from shoestring.training.engine.overflow import Overflow
from shoestring.training.fp16_overflow import mend_overflow
from shoestring.training.monitor.events import read
from shoestring.training.processes.one_process import Processes
from tests.overflowing import Normal, Tokens, Unmendable
from tests.sessions import final_checkpoint, light_bits, session

VALUES = {"precision": "fp16", "micro_batch": 2, "save_every_updates": 1, "keep_checkpoints": 20}
FOUND = "layers.1.mlp.down_proj"


class Stopped(Tokens):
    """Stops the session in the loss with this number, of those with gradients."""

    def __init__(self, stop_at):
        self.losses = iter(range(stop_at - 1, -1, -1))  # which copies of the recipe share

    def loss(self, model, batch):
        if torch.is_grad_enabled() and next(self.losses, 1) == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().loss(model, batch)


Stopped.__name__ = "Tokens"


def train(run, recipe, **settings):
    return shoestring.train(recipe, run=run, on="cpu", **{**VALUES, **settings})


def stored_setting(run):
    return json.loads((run / "plan.json").read_text())["plan"]["settings"]["fp32_modules"]


def environment(run):
    return final_checkpoint(run)["state"]["environment"]


def notes(run):
    return [event["message"] for event in read(run / "events.jsonl") if event["event"] == "note"]


def losses(run):
    return [event["loss"] for event in read(run / "events.jsonl") if event["event"] == "progress"]


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    run = tmp_path_factory.mktemp("straight") / "run"
    assert train(run, Tokens()).status == "finished"
    return run


def test_modules_are_found_reported_and_stored(straight):
    assert stored_setting(straight) == FOUND
    (note,) = [note for note in notes(straight) if "fp16:" in note]
    assert note.startswith(f"the model overflows in fp16: the output of {FOUND} is not finite, so 1 module will")
    assert f"(fp32_modules={FOUND})" in note
    assert losses(straight) and all(0 < loss < 7 for loss in losses(straight))
    assert environment(straight)["fp32_modules"] == FOUND


def test_a_stopped_run_ends_in_the_same_bits(straight, tmp_path, monkeypatch):
    run = tmp_path / "run"

    def fail(*_):
        raise ValueError("before the first checkpoint")

    for module, name, expected in ((fp16_overflow, "store_settings", None), (steps, "begin", FOUND)):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, fail)
            with pytest.raises(ValueError, match="before the first"):
                train(run, Tokens())
        assert stored_setting(run) == expected and not list((run / "checkpoints").glob("update-*"))
    for stop_at in (1, 3, 3):
        assert train(run, Stopped(stop_at)).status == "paused"
        monkeypatch.setattr(setup, "mend_overflow", fail)  # only new runs need it
    with pytest.raises(UsageError) as error:
        train(run, Tokens(), fp32_modules="head")
    assert f"fp32_modules: saved with {FOUND}, now head" in error.value.problems
    assert train(run, Tokens()).status == "finished"
    assert final_checkpoint(run) == final_checkpoint(straight)
    assert light_bits(run / "light") == light_bits(straight / "light")


def test_evaluation_and_replay_use_the_modules(straight):
    evaluation = shoestring.evaluate(straight, recipe=Tokens(), on="cpu", precision="fp16")
    exact = shoestring.evaluate(straight, recipe=Tokens(), on="cpu", precision="fp32")
    assert evaluation.metrics["train"]["loss"] == pytest.approx(exact.metrics["train"]["loss"], rel=1e-2)
    assert shoestring.replay(straight, 2, recipe=Tokens(), on="cpu").equals_checkpoint


def test_the_given_modules_remain(tmp_path):
    session(Tokens(), tmp_path, {**VALUES, "fp32_modules": "layers.*.norm", "max_updates": 1})
    assert environment(tmp_path)["fp32_modules"] == f"layers.*.norm,{FOUND}"


def test_a_run_that_cannot_be_mended_is_refused(tmp_path):
    with pytest.raises(UsageError, match="overflows in fp16, whose largest number is 65,504: the loss is not") as error:
        session(Unmendable(), tmp_path, VALUES)
    assert "--set precision=fp32;" in error.value.hint and " is inf in fp16 and 5." in error.value.problems[0]
    assert json.loads((tmp_path / "state.json").read_text())["status"] == "failed"
    assert not list((tmp_path / "checkpoints").glob("update-*"))


def test_other_runs_are_unchanged(tmp_path, monkeypatch):
    session(Normal(), tmp_path / "watched", VALUES)
    assert environment(tmp_path / "watched")["fp32_modules"] is None
    assert not any("fp16:" in note for note in notes(tmp_path / "watched"))
    monkeypatch.setattr(fp16_overflow, "find_overflow", None)  # is not called
    session(Tokens(), tmp_path / "fp32", {**VALUES, "precision": "fp32", "max_updates": 1})
    monkeypatch.setattr(setup, "mend_overflow", lambda session, _: session)
    session(Normal(), tmp_path / "plain", VALUES)
    assert final_checkpoint(tmp_path / "watched") == final_checkpoint(tmp_path / "plain")


class Scaling(Tokens):
    """Scales a weight in each loss."""

    def loss(self, model, batch):
        with torch.no_grad():
            model.head.weight.mul_(0.9)
        return super().loss(model, batch)


def test_the_search_leaves_the_parameters(tmp_path, monkeypatch):
    session(Scaling(), tmp_path / "searched", VALUES)
    known = Overflow(place="x", samples=2, fp32_loss=1.0, fp16_loss=1.0, modules=(FOUND,))
    monkeypatch.setattr(fp16_overflow, "find_overflow", lambda *_, **__: known)
    session(Scaling(), tmp_path / "told", VALUES)
    assert environment(tmp_path / "searched")["fp32_modules"] == FOUND
    assert final_checkpoint(tmp_path / "searched") == final_checkpoint(tmp_path / "told")


def test_divided_weights_are_not_searched(tmp_path, monkeypatch):
    """Of a session whose weights are divided among processes."""
    monkeypatch.setattr(fp16_overflow, "find_overflow", None)
    asked = []

    def divided(session, rebuild):
        with monkeypatch.context() as patch:
            patch.setattr(Processes, "has_whole_weights", False)
            asked.append(mend_overflow(session, rebuild))
        return session

    monkeypatch.setattr(setup, "mend_overflow", divided)
    session(Normal(), tmp_path, {**VALUES, "max_updates": 1})
    assert "overflows in fp16 was not tried" in asked[0].notes[-1]
