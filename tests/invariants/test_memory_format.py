"""Runs in channels_last: the learning of contiguous ones, exact resume, and equal files."""

import json
from functools import partial

import pytest
import torch
from safetensors.torch import load
from torch import nn
from torch.utils.data import TensorDataset

from shoestring.base.errors import UsageError
from shoestring.base.settings import Settings
from shoestring.recipe.finding import choose
from shoestring.runs.model import load_model
from shoestring.runs.replay.replay import open_replayable, replay
from shoestring.runs.run import open_run
from shoestring.training.engine.building import build
from shoestring.training.monitor.events import read
from shoestring.training.run_directory.directory import RunDirectory
from shoestring.training.run_directory.stored import StoredPlan
from tests.ranks import run_ranks
from tests.sessions import CPU, final_bits, session

VALUES = {"micro_batch": 4, "ema": 0.5, "save_every_updates": 1, "keep_checkpoints": 9, "optimizer_kernel": "fused"}


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 8, 3, groups=8),
            nn.Conv2d(8, 6, 1),
            nn.ConvTranspose2d(6, 4, 2, stride=2),
        )
        self.head = nn.Linear(4, 2)

    def forward(self, images):
        return self.head(self.features(images).mean(dim=(2, 3)))


class Images:
    """A convolutional network whose evaluation calls `view`, which channels_last images do not permit."""

    epochs = 2
    effective_batch = 8
    learning_rate = 0.01

    def __init__(self, channels_last=True):
        self._channels_last = channels_last

    def model(self):
        return Network()

    def blocks(self, model):
        return [model.features]

    def batch(self, size):
        return torch.ones(size, 3, 8, 8), torch.zeros(size, dtype=torch.int64)

    def loss(self, model, batch):
        images, labels = batch
        for tensor in (images, model.features[0].weight):
            assert tensor.is_contiguous(memory_format=torch.channels_last) == self._channels_last
            assert tensor.is_contiguous() != self._channels_last
        return nn.functional.cross_entropy(model(images), labels)

    def evaluate(self, model, batches):
        return {
            "loss": sum(float(self.loss(model, batch) + batch[0].view(len(batch[0]), -1).mean()) for batch in batches)
        }

    def predict(self, model, batch):
        return [
            {"label": int(label), "mean": float(image)}
            for label, image in zip(
                model(batch[0]).argmax(dim=1), batch[0].view(len(batch[0]), -1).mean(dim=1), strict=True
            )
        ]

    def data(self):
        generator = torch.Generator().manual_seed(0)
        images, labels = torch.randn(28, 3, 8, 8, generator=generator), torch.arange(28) % 2
        images[labels == 1, 0] += 1
        return {"train": TensorDataset(images[:24], labels[:24]), "validation": TensorDataset(images, labels)}


def values(memory_format, **others):
    return {**VALUES, "memory_format": memory_format, **others}


def losses(run):
    return [event["metrics"]["loss"] for event in read(run / "events.jsonl") if event["event"] == "evaluation"]


@pytest.fixture(scope="module")
def channels_last(tmp_path_factory):
    """A finished run in channels_last."""
    run = tmp_path_factory.mktemp("channels_last")
    assert session(Images(), run, values("channels_last")).status == "finished"
    return run


def test_learning_is_that_of_contiguous_tensors(channels_last, tmp_path):
    session(Images(channels_last=False), tmp_path, values("contiguous"))
    contiguous = losses(tmp_path)
    assert losses(channels_last) == pytest.approx(contiguous, rel=1e-4)
    assert contiguous[-1] < contiguous[0]
    bits, others = final_bits(channels_last), final_bits(tmp_path)
    assert bits != others  # rounding
    tensors, other_tensors = (load(content["model"]) for content in (bits, others))
    for name, tensor in tensors.items():
        torch.testing.assert_close(tensor, other_tensors[name], rtol=1e-3, atol=1e-4)


def test_run_that_is_stopped_and_killed_has_the_same_bits(channels_last, tmp_path):
    run = tmp_path / "run"
    assert session(Images(), run, values("channels_last"), stop="SIGTERM", at=3).update == 2
    killed = run_ranks(1, lambda _: session(Images(), run, values("channels_last"), stop="SIGKILL", at=7), tmp_path)
    assert killed == [-9]
    assert session(Images(), run, values("channels_last")).status == "finished"
    assert final_bits(run) == final_bits(channels_last)


def test_processes_that_divide_their_optimizer_have_the_bits_of_one(tmp_path):
    for size, sharding, stops in ((1, "ddp", ("",)), (2, "zero1", ("SIGTERM", ""))):
        settings = values("channels_last", sharding=sharding, logical_shards=2, max_updates=4)
        for stop in stops:
            act = partial(session, Images(), tmp_path / sharding, settings, stop=stop, at=5)
            assert run_ranks(size, lambda _, act=act: act(), tmp_path) == [0] * size
    assert final_bits(tmp_path / "ddp") == final_bits(tmp_path / "zero1")


@pytest.mark.parametrize("others", [{"checkpointing": "full", "precision": "bf16"}, {"offload": "optimizer"}])
def test_run_with_other_techniques_is_continued_exactly(tmp_path, others):
    settings = values("channels_last", optimizer_kernel="foreach", max_updates=4, **others)
    session(Images(), tmp_path / "straight", settings)
    session(Images(), tmp_path / "paused", settings, stop="SIGTERM", at=3)
    session(Images(), tmp_path / "paused", settings)
    assert final_bits(tmp_path / "paused") == final_bits(tmp_path / "straight")


def test_restored_optimizer_states_have_the_strides_of_their_parameters():
    loaded, settings = choose(Images(), values("channels_last", precision="fp32"))
    state, other = (build(loaded, settings, CPU) for _ in range(2))
    nn.functional.cross_entropy(state.model(torch.randn(4, 3, 8, 8)), torch.zeros(4, dtype=torch.int64)).backward()
    state.optimizer.step()
    saved = state.pack()
    saved["optimizer"]["state"] = {
        index: {name: value.contiguous() for name, value in values.items()}
        for index, values in saved["optimizer"]["state"].items()
    }
    other.restore(saved)
    for parameter, values_ in other.optimizer.state.items():
        assert values_["exp_avg"].stride() == parameter.stride()
    assert any(not parameter.is_contiguous() for parameter in other.optimizer.state)


def test_changing_the_format_is_not_exact(channels_last):
    with pytest.raises(UsageError) as error:
        session(Images(channels_last=False), channels_last, values("contiguous"))
    assert error.value.problems == ("memory_format: saved with channels_last, now contiguous",)


def test_a_run_that_was_stored_without_the_setting_is_contiguous(tmp_path):
    session(Images(channels_last=False), tmp_path, values("contiguous"), stop="SIGTERM", at=3)
    manifest = json.loads(next((tmp_path / "checkpoints").glob("update-*/state.json")).read_text())
    assert manifest["environment"]["memory_format"] is None
    settings = Settings().json()
    del settings["memory_format"]
    assert Settings.from_json(settings).memory_format is None
    assert session(Images(channels_last=False), tmp_path, VALUES).status == "finished"  # None is contiguous


def test_trained_weights_are_used_in_the_format_of_the_run(channels_last):
    loaded, settings = choose(Images(), values("channels_last", precision="fp32"))
    plan = {"settings": settings.json()}
    StoredPlan.from_recipe(loaded, plan).write(RunDirectory(channels_last).plan_file)
    recipe = Images()
    weight = load_model(open_run(channels_last, {}, recipe=recipe)).module.features[0].weight
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert not weight.is_contiguous()
    replayed = replay(open_replayable(channels_last, 4, {}, recipe=Images()), 4)
    assert (replayed.from_checkpoint, replayed.equals_checkpoint) == (3, True)


class OwnFormat(Images):
    """A recipe whose own model is in channels_last, for the trainer of a library."""

    epochs = 1

    def model(self):
        return Network().to(memory_format=torch.channels_last)

    def optimizer(self, model):
        return torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)

    def loss(self, model, batch):
        return nn.functional.cross_entropy(model(batch[0]), batch[1])


def test_a_models_own_format_is_restored_with_the_trainer_of_a_library(tmp_path):
    settings = {"micro_batch": 8, "save_every_updates": 1}
    session(OwnFormat(), tmp_path / "straight", settings, kind="trainer")
    session(OwnFormat(), tmp_path / "paused", settings, kind="trainer", stop="SIGTERM", at=2)
    session(OwnFormat(), tmp_path / "paused", settings, kind="trainer")
    straight, paused = (final_bits(tmp_path / name) for name in ("straight", "paused"))
    assert (paused["model"], paused["optimizer"]) == (straight["model"], straight["optimizer"])
