"""The steps of a session besides its updates: evaluation, best weights, early stopping, saving, reporting."""

import json
import os
import signal

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import TensorDataset

from shoestring.base.errors import CheckpointError, RunError, UsageError
from shoestring.training.checkpoint.light import load_light
from shoestring.training.checkpoint.store import Store
from shoestring.training.checkpoint.weights import load_weights
from shoestring.training.monitor.events import read
from tests.by_trainer import KINDS
from tests.sessions import final_bits, final_checkpoint, session


class Line:
    """A linear regression."""

    epochs = 4
    effective_batch = 10
    learning_rate = 0.05

    def model(self):
        return nn.Linear(2, 1)

    def batch(self, size):
        return torch.zeros(size, 2), torch.zeros(size, 1)

    def loss(self, model, batch):
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    def data(self):
        inputs = torch.randn(45, 2, generator=torch.Generator().manual_seed(0))
        whole = TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))
        parts = torch.utils.data.random_split(whole, [25, 10, 10], torch.Generator().manual_seed(0))
        return dict(zip(("train", "validation", "test"), parts, strict=True))


class ScriptedLosses(Line):
    """Returns the next of `losses` at each evaluation, and records the weights that are evaluated."""

    def evaluate(self, model, batches):
        assert len(list(batches))
        self.evaluated_weights.append(model.weight.detach().clone())
        return {"loss": self.losses[min(len(self.evaluated_weights) - 1, len(self.losses) - 1)]}

    def __init__(self, *losses, **attributes):
        self.losses, self.evaluated_weights = losses, []
        self.__dict__ |= attributes


def events(run, kind):
    return [event for event in read(run / "events.jsonl") if event["event"] == kind]


@pytest.mark.parametrize("kind", KINDS)
def test_best_weights_are_saved_and_tested(tmp_path, kind):
    recipe = ScriptedLosses(3.0, 1.0, 2.0, 4.0, 9.0)
    outcome = session(recipe, tmp_path, {}, kind=kind)
    assert outcome.metrics == {"validation": {"loss": 1.0}, "test": {"loss": 9.0}}
    best, last = nn.Linear(2, 1), nn.Linear(2, 1)
    assert load_light(tmp_path / "best", best) == {"update": 6, "metrics": {"loss": 1.0}}
    assert load_light(tmp_path / "light", last)["update"] == 12
    assert torch.equal(best.weight, recipe.evaluated_weights[1])
    assert torch.equal(last.weight, recipe.evaluated_weights[3])
    assert torch.equal(recipe.evaluated_weights[4], best.weight)
    assert [event["best"] for event in events(tmp_path, "evaluation")] == [True, True, False, False, False]


@pytest.mark.parametrize("kind", KINDS)
def test_average_is_evaluated_and_saved(tmp_path, kind):
    """The weights that are trained are those of a run without an average."""
    every = {"save_every_updates": 1, "keep_checkpoints": 20, "max_updates": 8, "keep_light": 1}
    session(ScriptedLosses(1.0), tmp_path / "raw", every, kind=kind)
    recipe = ScriptedLosses(3.0, 1.0, 2.0, 9.0)
    outcome = session(recipe, tmp_path / "run", {**every, "ema": 0.5, "light_weights": "fp16"}, kind=kind)
    assert outcome.metrics == {"validation": {"loss": 1.0}, "test": {"loss": 9.0}}
    assert (outcome.total_updates, outcome.reason) == (8, "max_updates=8")
    averages = {}
    for update in range(9):
        raw, folder = (tmp_path / name / "checkpoints" / f"update-{update:08d}" for name in ("raw", "run"))
        assert not (raw / "averaged.safetensors").exists()
        assert (folder / "model.safetensors").read_bytes() == (raw / "model.safetensors").read_bytes()
        weight = load_file(folder / "model.safetensors")["weight"]
        averages[update] = (averages[update - 1] + weight) / 2 if update > 1 else weight
        assert torch.allclose(load_file(folder / "averaged.safetensors")["weight"], averages[update], rtol=1e-6)
    tested = [*(averages[update] for update in (3, 6, 8)), averages[6].half().float()]
    assert all(torch.allclose(a, b, rtol=1e-6) for a, b in zip(recipe.evaluated_weights, tested, strict=True))
    for folder, update in (("best", 6), ("light", 8), ("light/update-00000008", 8)):
        load_light(tmp_path / "run" / folder, model := nn.Linear(2, 1))
        assert torch.equal(model.weight, load_file(checkpoint(tmp_path / "run", update))["weight"].half().float())
    assert load_weights(checkpoint(tmp_path / "run", 7).parent, model) == 7
    assert torch.equal(model.weight, load_file(checkpoint(tmp_path / "run", 7))["weight"])


def checkpoint(run, update):
    return run / "checkpoints" / f"update-{update:08d}" / "averaged.safetensors"


def test_run_ends_within_an_epoch(tmp_path):
    recipe = ScriptedLosses(3.0, 1.0, 9.0)
    outcome = session(recipe, tmp_path, {"max_updates": 4})
    assert (outcome.update, outcome.total_updates, outcome.reason) == (4, 4, "max_updates=4")
    assert outcome.metrics == {"validation": {"loss": 1.0}, "test": {"loss": 9.0}}
    assert load_light(tmp_path / "best", nn.Linear(2, 1))["update"] == 4
    evaluated = [(event["part"], event["update"], event["epoch"]) for event in events(tmp_path, "evaluation")]
    assert evaluated == [("validation", 3, 1), ("validation", 4, 2), ("test", 4, 2)]
    assert session(recipe, tmp_path, {"max_updates": 4}).update == 4
    assert len(events(tmp_path, "evaluation")) == 4  # of the test part again


def test_rounded_weights_are_tested(tmp_path):
    recipe = ScriptedLosses(3.0, 1.0, 2.0, 4.0, 9.0)
    session(recipe, tmp_path, {"light_weights": "fp16"})
    rounded = recipe.evaluated_weights[1].half().float()
    assert not torch.equal(rounded, recipe.evaluated_weights[1])
    assert torch.equal(recipe.evaluated_weights[4], rounded)
    load_light(tmp_path / "light", last := nn.Linear(2, 1))
    assert torch.equal(last.weight, recipe.evaluated_weights[3].half().float())


@pytest.mark.parametrize("kind", KINDS)
def test_without_saves_only_a_pause_leaves_a_checkpoint(tmp_path, kind):
    """With the bits of a run that saves."""
    saving, values = {"save_every_updates": 1}, {"save": "none", "save_every_updates": 1}
    session(ScriptedLosses(2.0, 1.0, 3.0, 9.0), tmp_path / "saving", saving, kind=kind)
    session(ScriptedLosses(2.0, 1.0, 3.0, 9.0), tmp_path / "whole", values, kind=kind)
    assert [path.name for path in (tmp_path / "whole" / "checkpoints").iterdir()] == ["update-00000000"]
    losses = ScriptedLosses(2.0, 1.0, 3.0, 9.0)
    assert session(losses, tmp_path / "run", values, kind=kind, stop="SIGTERM", at=4).status == "paused"
    names = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert names[0] == "update-00000000" and len(names) == 2
    assert session(losses, tmp_path / "run", values, kind=kind).status == "finished"
    weights = [(tmp_path / run / "light" / "model.safetensors").read_bytes() for run in ("saving", "whole", "run")]
    assert weights[0] == weights[1] == weights[2]


@pytest.mark.parametrize("kind", KINDS)
def test_early_stopping_finishes_the_run(tmp_path, kind):
    outcome = session(ScriptedLosses(2.0, 1.0, 3.0, 3.0, patience=2, epochs=50), tmp_path, {}, kind=kind)
    assert (outcome.status, outcome.update, outcome.reason) == ("finished", 12, "no better epoch in the last 2")


@pytest.mark.parametrize("kind", KINDS)
def test_early_stopping_before_a_pause_makes_no_update(tmp_path, kind):
    """The second session only evaluates the test part."""

    class Paused(ScriptedLosses):
        def evaluate(self, model, batches):
            if len(self.evaluated_weights) == 4 and not self.resumed:
                os.kill(os.getpid(), signal.SIGTERM)
            return super().evaluate(model, batches)

        resumed = False

    recipe = Paused(2.0, 1.0, 3.0, 3.0, patience=2, epochs=50)
    assert session(recipe, tmp_path, {}, kind=kind).status == "paused"
    recipe.resumed = True
    outcome = session(recipe, tmp_path, {}, kind=kind)
    assert (outcome.status, outcome.update) == ("finished", 12)
    assert sum(event["updates"] for event in events(tmp_path, "progress")) == 12


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_best_weights_are_replaced_with_a_note(tmp_path, kind):
    recipe = ScriptedLosses(3.0, 1.0, 2.0, 4.0, 9.0)
    session(recipe, tmp_path, {}, stop="limit", at=8, kind=kind)
    best = tmp_path / "best" / "model.safetensors"
    damaged = bytearray(best.read_bytes())
    damaged[-3] ^= 1
    best.write_bytes(damaged)
    assert session(recipe, tmp_path, {}, kind=kind).status == "finished"
    assert [event["update"] for event in events(tmp_path, "evaluation") if event["part"] == "test"] == [12]
    last = nn.Linear(2, 1)
    load_light(tmp_path / "light", last)
    assert torch.equal(recipe.evaluated_weights[-1], last.weight)
    assert any("are of the last weights, not the best" in event["message"] for event in events(tmp_path, "note"))


@pytest.mark.parametrize("kind", KINDS)
def test_state_is_saved_before_the_first_evaluation(tmp_path, kind):
    """Its duration is unknown, and the deadline of these sessions has a limit."""
    session(Line(), tmp_path, {"save_every_seconds": 1000}, kind=kind)
    saved = [event["update"] for event in read(tmp_path / "events.jsonl") if event.get("kind") == "full"]
    assert saved == [0, 3, 12]


@pytest.mark.parametrize("kind", KINDS)
def test_resuming_evaluates_the_ended_epoch_first(tmp_path, kind):
    assert session(Line(), tmp_path, {}, stop="limit", at=3, kind=kind).update == 3
    assert events(tmp_path, "evaluation") == []
    session(Line(), tmp_path, {}, stop="limit", at=2, kind=kind)
    (evaluated,) = events(tmp_path, "evaluation")
    assert (evaluated["update"], evaluated["session"]) == (3, 2)


def test_training_part_alone_is_not_evaluated(tmp_path):
    class Bare(Line):
        def data(self):
            return super().data()["train"]

    outcome = session(Bare(), tmp_path, {})
    assert (outcome.status, outcome.update, outcome.metrics) == ("finished", 12, {})
    assert not (tmp_path / "best").exists()
    assert (tmp_path / "light" / "model.safetensors").exists()


def test_checkpoint_before_the_first_update(tmp_path):
    assert session(Line(), tmp_path, {}, stop="limit", at=1).update == 1
    assert [event["update"] for event in events(tmp_path, "save")] == [0, 1]


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_non_finite_loss_ends_the_run_unsaved(tmp_path, poison):
    class Poisoned(Line):
        losses = 0

        def loss(self, model, batch):
            self.losses += model.training
            return super().loss(model, batch) * (poison if self.losses == 5 else 1)

    with pytest.raises(RunError, match=f"the loss of update 5 is {poison}"):
        session(Poisoned(), tmp_path, {"save_every_updates": 1})
    state = json.loads((tmp_path / "state.json").read_text())
    assert (state["status"], state["update"]) == ("failed", 4)
    assert Store(tmp_path / "checkpoints").load().update == 4
    assert events(tmp_path, "stop")[-1]["status"] == "failed"


def test_values_of_another_type_are_named(tmp_path):
    class Detached(Line):
        def loss(self, model, batch):
            return super().loss(model, batch).detach()

    class Number(Line):
        def evaluate(self, model, batches):
            return 0.5

    class Pair(Line):
        def data(self):
            return tuple(super().data().values())

    for recipe, message in (
        (Detached(), "without a gradient"),
        (Number(), r"evaluate\(\) returned a float"),
        (Pair(), r"data\(\) returned a tuple of 3 datasets"),
    ):
        with pytest.raises(UsageError, match=message):
            session(recipe, tmp_path / type(recipe).__name__, {})


def test_recipe_error_fails_the_run_and_is_raised(tmp_path):
    class Broken(Line):
        def evaluate(self, model, batches):
            raise ZeroDivisionError("no batches?")

    with pytest.raises(ZeroDivisionError):
        session(Broken(), tmp_path, {})
    assert json.loads((tmp_path / "state.json").read_text())["reason"] == "ZeroDivisionError: no batches?"


@pytest.mark.parametrize("name", ["manifest.json", "state.json", "model.safetensors", "optimizer.safetensors"])
def test_damaged_checkpoint_falls_back_to_the_previous_one(tmp_path, name):
    session(Line(), tmp_path / "straight", {})
    session(Line(), tmp_path / "damaged", {"save_every_updates": 3}, stop="limit", at=8)
    before, last = sorted((tmp_path / "damaged" / "checkpoints").glob("update-*"))
    newest = last / name
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.write_bytes(data)
    session(Line(), tmp_path / "damaged", {"save_every_updates": 3})
    (damaged,) = events(tmp_path / "damaged", "damaged")
    assert (damaged["path"], damaged["file"]) == (last.name, name)
    assert events(tmp_path / "damaged", "session")[-1]["update"] == int(before.name[-8:]) > 0
    assert final_bits(tmp_path / "damaged") == final_bits(tmp_path / "straight")


def test_another_model_is_rejected(tmp_path):
    session(Line(), tmp_path, {}, stop="limit", at=1)

    class Wider(Line):
        def model(self):
            return nn.Linear(3, 1)

    with pytest.raises(CheckpointError, match="belongs to another model"):
        session(Wider(), tmp_path, {})


def test_another_microbatch_needs_allow_inexact(tmp_path):
    session(Line(), tmp_path, {"micro_batch": 10}, stop="limit", at=2)
    with pytest.raises(UsageError, match="micro_batch: saved with 10, now 5"):
        session(Line(), tmp_path, {"micro_batch": 5})
    assert session(Line(), tmp_path, {"micro_batch": 5}, allow_inexact=True).status == "finished"
    assert any("micro_batch: saved with 10, now 5" in event["message"] for event in events(tmp_path, "note"))


def test_events_contain_every_update_once(tmp_path):
    session(Line(), tmp_path, {}, stop="limit", at=5)
    session(Line(), tmp_path, {})
    progress = events(tmp_path, "progress")
    assert sum(event["updates"] for event in progress) == 12
    assert sum(event["samples"] for event in progress) == 4 * 25
    assert [event["reason"] for event in events(tmp_path, "stop")] == ["session limit of 16 min 40 s", "all 4 epochs"]


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_mixed_precision_resumes_to_the_same_bits(tmp_path, precision):
    for name, stop_points in (("straight", []), ("stopped", [5, 3])):
        for loss_count in stop_points:
            session(Line(), tmp_path / name, {"precision": precision}, stop="limit", at=loss_count)
        session(Line(), tmp_path / name, {"precision": precision})
    newest = "checkpoints/update-00000012"
    for file in ("model.safetensors", "optimizer.safetensors", "state.json"):
        assert (tmp_path / "straight" / newest / file).read_bytes() == (
            tmp_path / "stopped" / newest / file
        ).read_bytes()
    scaler = json.loads((tmp_path / "straight" / newest / "state.json").read_text())["scaler"]
    assert (scaler is not None) == (precision == "fp16")


class Turns(Line):
    """Trains the weight and the bias in turns, as scripts train a generator and a discriminator."""

    def stage(self, update, updates_per_epoch, total_updates):
        return ("weight", "bias")[update % 2]

    def loss(self, model, batch, stage="weight"):
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name == stage)
        return super().loss(model, batch)


def test_parameters_that_a_stage_freezes_are_in_the_checkpoint(tmp_path):
    for name, stop_points in (("straight", []), ("stopped", [5, 4])):
        for loss_count in stop_points:
            session(Turns(), tmp_path / name, {}, stop="limit", at=loss_count)
        session(Turns(), tmp_path / name, {})
    assert final_bits(tmp_path / "straight") == final_bits(tmp_path / "stopped")


def test_loss_cannot_train_frozen_parameters(tmp_path):
    class Frozen(Turns):
        def model(self):
            model = super().model()
            model.bias.requires_grad_(False)
            return model

        def optimizer(self, model):
            return torch.optim.SGD(model.parameters(), lr=0.1)

    with pytest.raises(UsageError, match="loss\\(\\) has enabled the training of 1 parameters that model"):
        session(Frozen(), tmp_path, {})


class RandomData(Line):
    def data(self):
        return {"train": TensorDataset(torch.randn(25, 2), torch.randn(25, 1))}

    best = ("accuracy", "max")


def test_random_data_are_the_same_in_each_session(tmp_path):
    for name, stop_points in (("straight", []), ("stopped", [5])):
        for loss_count in stop_points:
            session(RandomData(), tmp_path / name, {}, stop="limit", at=loss_count)
        session(RandomData(), tmp_path / name, {})
    assert final_checkpoint(tmp_path / "straight") == final_checkpoint(tmp_path / "stopped")
    assert any(
        "so best of RandomData cannot be used" in note["message"] for note in events(tmp_path / "stopped", "note")
    )


class Scaling(Line):
    """Scales the weight in each loss, and freezes it in evaluations."""

    epochs = 2
    whole_batch = False

    def loss(self, model, batch):
        with torch.no_grad():
            model.weight.mul_(0.9)
        return super().loss(model, batch)

    def evaluate(self, model, batches):
        model.weight.requires_grad_(False)
        return {"loss": len(list(batches))}


class WholeScaling(Scaling):
    whole_batch = True


def test_checks_and_evaluations_leave_the_parameters(tmp_path):
    for recipe in (Scaling(), WholeScaling()):  # only the first is compared with its halves
        session(recipe, tmp_path / type(recipe).__name__, {})
    assert not any("depends on which samples" in event["message"] for event in events(tmp_path / "Scaling", "note"))
    bits = [final_bits(tmp_path / name) for name in ("Scaling", "WholeScaling")]
    assert bits[0] == bits[1]
    assert any(name.endswith("weight") for name in Store(tmp_path / "Scaling" / "checkpoints").load().state["model"])
