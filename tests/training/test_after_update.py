"""Recipes with tensors that no optimizer steps, such as those of a teacher, advanced in `loss` or after updates."""

import copy
import json
import random
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from shoestring.errors import UsageError
from shoestring.recipe.after_update import after_update_of
from shoestring.recipe.finding import choose
from shoestring.recipe.parts import Parts
from shoestring.recipe.parts.learning import Learning
from shoestring.training.checkpoint.store import Store
from shoestring.training.checkpoint.weights import load_weights
from shoestring.training.engine.assembly import DevicePlace, assemble
from shoestring.training.engine.building import build
from shoestring.training.engine.loss_changes import LossChanges
from shoestring.training.engine.parallel.ranks import Ranks
from shoestring.training.engine.untrained import UntrainedTensors
from tests.ranks import run_ranks
from tests.sessions import final_bits, session


class Momentum(nn.Module):
    """A student and a teacher that follows it, a queue in a buffer and a centre in an attribute."""

    def __init__(self):
        super().__init__()
        self.student, self.teacher = nn.Linear(4, 3), nn.Linear(4, 3).requires_grad_(False)
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("queue", torch.zeros(8, 3))
        self.register_buffer("new", torch.zeros(8, 3))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.centre = torch.zeros(3)
        self.late = None


class Teacher:
    """Advances them after each update, as BYOL does: `.data` leaves no trace that torch counts."""

    epochs, effective_batch = 2, 8

    def model(self):
        return Momentum()

    def batch(self, size):
        return (torch.zeros(size, 4),)

    def data(self):
        samples = TensorDataset(torch.randn(48, 4, generator=torch.Generator().manual_seed(0)))
        return {"train": samples, "validation": torch.utils.data.Subset(samples, range(8))}

    def loss(self, model, batch):
        x = batch[0]
        answer = model.student(x)
        with torch.no_grad():
            target = model.teacher(x) - model.centre - model.queue.mean(0)
        start = int(model.count)
        model.new[start : start + len(x)] = target
        model.count += len(x)
        return (answer - target).square().mean()

    @torch.no_grad()
    def after_update(self, model):
        for follower, leader in zip(model.teacher.parameters(), model.student.parameters(), strict=True):
            follower.data = follower.data * 0.5 + leader.data * 0.5
        count = int(model.count)
        model.queue.copy_(torch.roll(model.queue, count, 0))
        model.queue[:count] = model.new[:count] + torch.rand(3)
        model.count.zero_()
        model.centre = 0.9 * model.centre + 0.1 * model.queue.mean(0)
        model.late = model.centre.clone()


class Drawing(Teacher):
    """Draws from generators that the recipe and the model hold, some of which the first loss creates."""

    best = ("draw", "min")

    def __init__(self):
        self.generators = [np.random.default_rng(), torch.Generator(), None]
        self.generators[1].seed()

    def model(self):
        model = super().model()
        model.generator = np.random.RandomState()
        return model

    def loss(self, model, batch):
        if self.generators[2] is None:
            self.generators[2] = random.Random()
        return super().loss(model, (batch[0] + self.draw(model),))

    def draw(self, model):
        numbers, tensors, late = self.generators
        return numbers.random() + torch.rand(1, generator=tensors).item() + late.random() + model.generator.rand()

    def after_update(self, model):
        super().after_update(model)
        model.centre += self.draw(model)

    def evaluate(self, model, batches):
        return {"draw": self.draw(model), "batches": len(list(batches))}


class InLoss(Teacher):
    """Advances the teacher in the loss, as MoCo does."""

    after_update = None

    def loss(self, model, batch):
        x = nn.functional.normalize(batch[0] + model.norm(batch[0]))
        for follower, leader in zip(model.teacher.parameters(), model.student.parameters(), strict=True):
            follower.data.mul_(0.9).add_(0.1 * leader.data)
        target = model.teacher(x)
        model.centre.mul_(0.9).add_(target.mean(0).detach(), alpha=0.1)
        return (model.student(x) - target + model.centre).square().mean()


def notes_of(run):
    entries = map(json.loads, (run / "events.jsonl").read_text().splitlines())
    return [entry["message"] for entry in entries if entry.get("message", "").startswith("loss() changes")]


@pytest.mark.parametrize(
    ("recipe", "kind"), [(Drawing, "engine"), (Teacher, "engine"), (InLoss, "engine"), (InLoss, "trainer")]
)
def test_a_resumed_run_continues_with_its_teacher(tmp_path, recipe, kind):
    for name, stops in (("straight", ()), ("stopped", (3, 4))):
        for count in stops:
            session(recipe(), tmp_path / name, {}, stop="limit", at=count, kind=kind)
        session(recipe(), tmp_path / name, {}, kind=kind)
    bits = final_bits(tmp_path / "straight")
    assert bits == final_bits(tmp_path / "stopped")
    checkpoint = tmp_path / "straight" / "checkpoints" / bits["name"]
    assert {"teacher.weight", "centre"} <= Store(checkpoint.parent).load().state["model"].keys()
    model, final = Momentum(), Store(checkpoint.parent).load().state["model"]
    load_weights(checkpoint, model)
    assert torch.equal(model.teacher.weight, final["teacher.weight"]) and torch.equal(model.centre, final["centre"])


class Crowded(Teacher):
    """Runs out of memory in the fifth update and later, with more than four samples."""

    calls = updates = 0

    def loss(self, model, batch):
        value = super().loss(model, batch)
        Crowded.calls += model.training
        if model.training and Crowded.updates >= 4 and len(batch[0]) > 4:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return value

    def after_update(self, model):
        Crowded.updates += 1
        super().after_update(model)


def test_smaller_microbatches_do_not_advance_the_teacher_more_often(tmp_path):
    session(Teacher(), tmp_path / "fits", {})
    session(Crowded(), tmp_path / "crowded", {})
    assert Crowded.updates == 12 and Crowded.calls > 12
    fits, crowded = (Store(tmp_path / name / "checkpoints").load().state["model"] for name in ("fits", "crowded"))
    torch.testing.assert_close(crowded, fits)
    assert crowded["count"] == 0  # nor does the evaluation of eight samples


@pytest.mark.parametrize("sharding", ["ddp", "zero1"])
def test_two_processes_have_the_bits_of_one(tmp_path, sharding):
    values = {"logical_shards": 2, "micro_batch": 2, "sharding": sharding}
    for size in (1, 2):
        run = tmp_path / str(size)
        assert run_ranks(size, lambda _, run=run: session(Drawing(), run, values), tmp_path) == [0] * size
    assert final_bits(tmp_path / "1") == final_bits(tmp_path / "2")


class Overflowing(Teacher):
    """The loss of the fourth update is infinite, so that fp16 skips it."""

    def __init__(self):
        self.numbers = []

    def stage(self, update, *_):
        return update

    def loss(self, model, batch, stage=0):
        return super().loss(model, batch) * (float("inf") if stage == 3 else 1)

    def after_update(self, model, stage):
        self.numbers.append(stage)
        super().after_update(model)


def test_a_skipped_update_does_not_advance_the_teacher(tmp_path):
    recipe = Overflowing()
    session(recipe, tmp_path, {"precision": "fp16"})
    assert recipe.numbers == [0, 1, 2, *range(4, 12)]


class Statistics(InLoss):
    """Has only changes that are no state of the recipe's own, and one in the recipe's object."""

    def __init__(self):
        self.criterion = Momentum()

    def model(self):
        model = super().model()
        model.student = nn.Sequential(
            nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3)),
            nn.Dropout(0.5),
            nn.BatchNorm1d(3),
            torch.ao.quantization.FakeQuantize(),
        )
        model.spectral = nn.utils.spectral_norm(nn.Linear(3, 3))
        model.teacher = nn.utils.weight_norm(nn.Linear(4, 3)).requires_grad_(False)
        return model

    def loss(self, model, batch):
        answer = model.spectral(model.student(model.norm(batch[0])))
        self.criterion.count += 1
        return (answer - model.teacher(batch[0])).square().mean()


def test_changes_in_the_loss_are_noted_once(tmp_path):
    for recipe in (InLoss, Teacher):
        session(recipe(), tmp_path / recipe.__name__, {})
    (note,) = notes_of(tmp_path / "InLoss")
    assert note.startswith("loss() changes centre, teacher.bias, teacher.weight of the model: once for each microbatch")
    assert "after_update(model)" in note
    assert not notes_of(tmp_path / "Teacher")  # its loss fills buffers for after_update


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
def test_statistics_are_not_noted_and_tensors_of_the_recipe_are():
    recipe = Statistics()
    model = recipe.model()
    changes = LossChanges(model, recipe, UntrainedTensors(model))
    recipe.loss(model, (torch.randn(8, 4),))
    changes.observe()
    (note,) = changes.notes(has_hook=False)
    assert note.startswith("loss() changes self.criterion.count of the recipe, which no checkpoint contains")


def test_buffers_that_a_recipe_registers_in_a_container_of_torch_are_noted():
    model = torch.nn.ModuleDict({"norm": torch.nn.BatchNorm1d(2)})
    model.register_buffer("centre", torch.zeros(2))
    changes = LossChanges(model, None, UntrainedTensors(model))
    model["norm"](torch.randn(4, 2))
    model.centre.add_(1)
    changes.observe()
    (note,) = changes.notes(has_hook=False)
    assert note.startswith("loss() changes centre of the model")


def test_logical_shards_need_the_hook(tmp_path):
    session(Teacher(), tmp_path / "hook", {"logical_shards": 2, "micro_batch": 4})
    with pytest.raises(UsageError, match="loss\\(\\) changes centre of the model, once for each microbatch"):
        session(InLoss(), tmp_path / "loss", {"logical_shards": 2, "micro_batch": 4})


def test_divided_weights_are_refused():
    loaded, settings = choose(Teacher(), {"sharding": "zero3", "precision": "fp32"})
    with pytest.raises(UsageError, match="after_update\\(\\) needs whole weights"):
        assemble(loaded, settings, DevicePlace(device=torch.device("cpu"), ranks=Ranks(0, 2)))


def test_a_checkpoint_from_before_a_change_restores_the_first_values():
    loaded, settings = choose(InLoss(), {"precision": "fp32"})
    state = build(loaded, settings, torch.device("cpu"))
    saved = copy.deepcopy(state.pack())
    first = state.model.teacher.weight.clone()
    state.model.teacher.weight.data.add_(1)
    state.model.centre = torch.ones(3)
    assert {"teacher.weight", "centre"} <= state.pack()["model"].keys()
    state.restore(saved)
    assert torch.equal(state.model.teacher.weight, first) and not state.model.centre.any()
    assert state.pack()["model"].keys() == saved["model"].keys()


def test_a_checkpoint_from_before_a_first_tensor_restores_its_absence():
    """After out-of-memory in the hook of the first update, the next attempt must not find the tensors of the failed."""
    loaded, settings = choose(Teacher(), {"precision": "fp32"})
    state = build(loaded, settings, torch.device("cpu"))
    saved = copy.deepcopy(state.pack())
    state.model.late, state.model.student.other = torch.ones(3), torch.ones(3)
    assert {"late", "student.other"} <= state.pack()["model"].keys()
    state.restore(saved)
    assert state.model.late is None and not hasattr(state.model.student, "other")
    assert state.pack()["model"].keys() == saved["model"].keys()


def test_the_hook_gets_the_stage_and_needs_the_own_loop():
    def hook(model, stage):
        return model, stage

    parts, plain = Parts(learning=Learning(after_update=hook)), Parts()
    assert after_update_of(parts, partial(lambda: None, stage="second"))("model") == ("model", "second")
    assert after_update_of(plain, lambda: None) is None
    assert after_update_of(parts, lambda: None) is hook
    with pytest.raises(UsageError, match="after_update\\(\\) would not be called"):
        after_update_of(Parts(learning=Learning(after_update=hook, trainer=lambda: None)), lambda: None)
