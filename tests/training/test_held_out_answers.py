"""Answers to held-out prompts: once before training and after each epoch, without any effect on the run."""

import os
import random
import signal
import time
from itertools import count
from types import SimpleNamespace

import numpy
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from shoestring.base.errors import UsageError
from shoestring.training import held_out_answers, steps
from shoestring.training.data.generators import GeneratorStates
from shoestring.training.held_out_answers import as_rows
from shoestring.training.monitor.events import read
from shoestring.training.monitor.time_breakdown import compute_breakdown
from shoestring.training.session.deadline import Deadline
from tests.by_trainer import KINDS
from tests.ranks import run_ranks
from tests.sessions import Clock, final_bits, session
from tests.training.test_loop import Line


class Net(nn.Module):
    """A linear layer after dropout, with a buffer that counts the evaluations."""

    def __init__(self):
        super().__init__()
        self.linear, self.dropout = nn.Linear(2, 1), nn.Dropout(0.5)
        self.register_buffer("evaluations", torch.zeros(1))

    def forward(self, inputs):
        if not self.training:
            self.evaluations.add_(1)
        return self.linear(self.dropout(inputs))


class Plain(Line):
    epochs = 3
    evaluations = 0

    def model(self):
        return Net()

    def evaluate(self, model, batches):
        return {"loss": float(model.linear.weight.square().sum())}


class Answering(Plain):
    """Changes all that could change the bits of a run."""

    def __init__(self, act=lambda number: None):
        self.weights, self.modes, self._act = [], [], act

    def answers(self, model):
        self._act(len(self.weights))
        self.weights.append(model.linear.weight.tolist())
        self.modes.append((model.training, model.dropout.training, torch.is_grad_enabled()))
        random.random(), numpy.random.rand(), torch.rand(3)
        model(torch.ones(1, 2))
        model.train()
        model.linear.weight.requires_grad_(False)
        yield {"prompt": "p", "answer": f"a{len(self.weights)}", "reference": "r", "stopped": True}
        yield {"prompt": "q", "answer": "b"}


def answered(run):
    return [(event["update"], event["epoch"], len(event["rows"])) for event in read_answers(run)]


def read_answers(run):
    return [event for event in read(run / "events.jsonl") if event["event"] == "answers"]


ALL = [(0, 0, 2), (3, 1, 2), (6, 2, 2), (9, 3, 2)]


@pytest.mark.parametrize("kind", KINDS)
def test_answers_before_training_and_after_each_epoch_change_no_bit(tmp_path, kind):
    recipe = Answering()
    session(Plain(), tmp_path / "plain", {}, kind=kind)
    session(recipe, tmp_path / "run", {}, kind=kind)
    assert answered(tmp_path / "run") == ALL
    assert final_bits(tmp_path / "run") == final_bits(tmp_path / "plain")
    assert recipe.modes == [(False, False, False)] * 4
    assert len({str(weight) for weight in recipe.weights}) == 4
    first = read_answers(tmp_path / "run")[0]
    assert first["rows"] == [
        {"prompt": "p", "answer": "a1", "reference": "r", "stopped": True},
        {"prompt": "q", "answer": "b", "reference": None, "stopped": None},
    ]
    assert first["skipped"] == ""


def test_random_numbers_continue(tmp_path, monkeypatch):
    unchanged = []

    def answer(training_session):
        states = GeneratorStates()
        held_out_answers.answer_held_out_prompts(training_session)
        unchanged.append(states.unchanged())

    monkeypatch.setattr(steps, "answer_held_out_prompts", answer)
    session(Answering(), tmp_path, {})
    assert answered(tmp_path) == ALL and len(unchanged) == 10 and all(unchanged)


def test_averaged_weights_answer(tmp_path):
    recipe = Answering()
    session(recipe, tmp_path, {"ema": 0.5, "save_every_updates": 3, "keep_checkpoints": 9})
    averaged = []
    for update in (3, 6, 9):
        folder = tmp_path / "checkpoints" / f"update-{update:08d}"
        averaged.append(load_file(folder / "averaged.safetensors")["linear.weight"].tolist())
    assert recipe.weights[1:] == averaged


@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_not_repeated_after_a_stop(tmp_path, kind):
    session(Answering(), tmp_path / "whole", {}, kind=kind)
    assert session(Answering(), tmp_path / "run", {}, kind=kind, stop="SIGTERM", at=1).status == "paused"
    assert session(Answering(), tmp_path / "run", {}, kind=kind, stop="SIGTERM", at=4).status == "paused"
    recipe = Answering()
    assert session(recipe, tmp_path / "run", {}, kind=kind).status == "finished"
    assert answered(tmp_path / "run") == ALL
    assert len(recipe.weights) < 4
    assert final_bits(tmp_path / "run") == final_bits(tmp_path / "whole")
    session(recipe := Answering(), tmp_path / "run", {}, kind=kind)
    assert not recipe.weights


def test_data_without_validation(tmp_path):
    class Unvalidated(Answering):
        def data(self):
            return super().data()["train"]

    session(Unvalidated(), tmp_path, {})
    assert answered(tmp_path) == ALL


def notes(run):
    return [event["message"] for event in read(run / "events.jsonl") if event["event"] == "note"]


def test_answers_that_do_not_fit_into_memory_are_left_out(tmp_path):
    def fail(number):
        if number == 1:
            recipe.weights.append(None)
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    recipe = Answering(fail)
    assert session(recipe, tmp_path / "run", {}).status == "finished"
    session(Plain(), tmp_path / "plain", {})
    assert answered(tmp_path / "run") == [(0, 0, 2), (3, 1, 0), (6, 2, 2), (9, 3, 2)]
    assert read_answers(tmp_path / "run")[1]["skipped"].startswith("out of memory: CUDA out of memory")
    message = "the held-out prompts are not answered after update 3: out of memory: CUDA out of memory."
    assert any(note.startswith(message) for note in notes(tmp_path / "run"))
    assert final_bits(tmp_path / "run") == final_bits(tmp_path / "plain")


def limited_session(recipe, run, monkeypatch, deadline):
    with monkeypatch.context() as patch:
        patch.setattr("tests.sessions.Deadline", lambda *_, **__: deadline)
        return session(recipe, run, {})


def test_session_ends_in_time_although_answers_do_not(tmp_path, monkeypatch):
    """They are interrupted, and not tried again: otherwise each session would end in them."""

    def hang(number):
        if number == 0:
            time.sleep(60)

    started_at = time.monotonic()
    deadline = Deadline(1.0, margin_seconds=0.2)
    outcome = limited_session(Answering(hang), tmp_path, monkeypatch, deadline)
    assert (outcome.status, outcome.update) == ("paused", 0) and outcome.reason.startswith("session limit")
    assert time.monotonic() - started_at < 30
    assert session(Answering(), tmp_path, {}).status == "finished"
    assert answered(tmp_path) == [(0, 0, 0), *ALL[1:]]


def test_answers_that_do_not_fit_into_the_session_are_postponed(tmp_path, monkeypatch):
    """The last ones have taken more than what is left."""
    clock = Clock()

    monkeypatch.setattr(held_out_answers, "time", SimpleNamespace(monotonic=count(step=200).__next__))
    deadline = Deadline(1000, clock=clock)
    original = Plain.evaluate

    def evaluate(self, model, batches):
        clock.now += 400
        return original(self, model, batches)

    monkeypatch.setattr(Plain, "evaluate", evaluate)
    outcome = limited_session(Answering(), tmp_path, monkeypatch, deadline)
    assert outcome.status == "paused"
    assert answered(tmp_path) == [(0, 0, 2), (3, 1, 2)]
    assert any(note.startswith("the held-out prompts are not answered after update 6") for note in notes(tmp_path))


def test_stop_between_two_rows(tmp_path):
    class Slow(Answering):
        def answers(self, model):
            yield {"prompt": "p", "answer": "a"}
            os.kill(os.getpid(), signal.SIGTERM)
            yield {"prompt": "p", "answer": "b"}

    outcome = session(Slow(), tmp_path, {})
    assert (outcome.status, outcome.reason) == ("paused", "SIGTERM")
    assert not answered(tmp_path)  # the next session answers them
    session(Answering(), tmp_path, {})
    assert answered(tmp_path) == ALL


@pytest.mark.parametrize("rows", [{"prompt": "p"}, "text", None, [{"prompt": "p"}], [{"prompt": "p", "answer": 3}]])
def test_anything_else_than_rows_is_refused(tmp_path, rows):
    recipe = Plain()
    recipe.answers = lambda model: rows
    with pytest.raises(UsageError, match=r"answers\(\) returned") as error:
        session(recipe, tmp_path, {})
    assert "a row for each prompt" in error.value.hint


def test_long_answers_are_cut_and_unreadable_characters_replaced(tmp_path):
    (row,) = as_rows([{"prompt": "\ud800", "answer": "x" * 5000}])
    assert row["prompt"] == "?" and row["answer"].endswith("x ... (1,000 more characters)")
    recipe = Plain()
    recipe.answers = lambda model: [{"prompt": "\x00" * 4000, "answer": "a"}] * 30
    session(recipe, tmp_path, {"max_updates": 1})
    (first, _) = read_answers(tmp_path)
    assert 15 < len(first["rows"]) < 30
    assert f"the answers to {30 - len(first['rows'])} held-out prompts are not recorded: too long" in notes(tmp_path)


def test_time_is_that_of_evaluations():
    events = [{"event": "answers", "seconds": 3.0}, {"event": "evaluation", "seconds": 2.0}]
    assert compute_breakdown(events, 10.0).evaluating == 5.0


def test_first_of_two_ranks_answers(tmp_path):
    def act(rank):
        session(Answering(), tmp_path / "run", {"gpus": 2, "logical_shards": 2})

    assert run_ranks(2, act, tmp_path) == [0, 0]
    assert answered(tmp_path / "run") == ALL
    session(Plain(), tmp_path / "plain", {"logical_shards": 2})
    assert final_bits(tmp_path / "run") == final_bits(tmp_path / "plain")
