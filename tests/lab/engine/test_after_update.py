"""What a recipe changes itself on a GPU, after updates and in its loss: with skipped steps, in saves, after a stop."""

import pytest
import torch
from safetensors import safe_open
from torch import nn
from torch.nn import functional

from tests.lab.engine.networks import CLASSES, Classifier
from tests.lab.engine.test_scaling import scaler  # noqa: F401  (a fixture)
from tests.lab.engine.trained import CPU, CUDA, assert_same_bits, largest_difference, read, train


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, values):
        return values + torch.tanh(self.layer(values))


class Pair(nn.Module):
    """A student and its teacher, the sum of the teacher's answers, and a centre that the first update creates."""

    def __init__(self):
        super().__init__()
        self.student, self.teacher = (
            nn.Sequential(*(Block() for _ in range(2)), nn.Linear(6, CLASSES)) for _ in range(2)
        )
        self.teacher.requires_grad_(False)
        self.register_buffer("sum", torch.zeros(CLASSES))
        self.centre = None


class Teacher(Classifier):
    """The loss needs the centre on the GPU. Its random numbers are drawn on the host, as the CPU draws them."""

    def __init__(self, factor=1.0):
        super().__init__(network="dense", clip_norm=None)
        self.factor, self.calls = factor, []

    def model(self):
        return Pair()

    def blocks(self, model):
        return list(model.student[:2])

    def loss(self, model, batch):
        with torch.no_grad():
            answers = model.teacher(batch[0]).float()
            if model.training:
                model.sum += answers.sum(0)
        targets = (answers if model.centre is None else answers - model.centre).softmax(1)
        return self.factor * functional.cross_entropy(model.student(batch[0]), targets)

    def after_update(self, model):
        self.calls.append(float(model.sum[0]))
        for follower, leader in zip(model.teacher.parameters(), model.student.parameters(), strict=True):
            follower.data.lerp_(leader.to(follower.device), 0.5)  # without a trace that torch counts
        model.centre = 0.01 * model.sum + 0.1 * torch.rand(CLASSES).to(model.sum.device)
        model.sum.zero_()


def saved_names(run):
    newest = max((run / "checkpoints").glob("update-*"))
    with safe_open(newest / "model.safetensors", framework="pt") as file:
        return set(file.keys())


def test_the_teacher_advances_once_for_each_update_also_if_its_step_is_repeated(tmp_path, scaler):  # noqa: F811
    """With the bits of a scale that never overflows, and the calls and the scale of the CPU."""
    values, recipes = {"precision": "fp16"}, [Teacher(2.0**9) for _ in range(3)]
    gpu = train(tmp_path / "gpu", recipes[0], values)
    cpu = train(tmp_path / "cpu", recipes[1], values, device=CPU)
    skipped = [update["skipped"] for update in gpu.updates]
    assert sum(skipped) > 3 and skipped == [update["skipped"] for update in cpu.updates]
    assert gpu.state["scaler"] == cpu.state["scaler"]
    scaler(init_scale=gpu.state["scaler"]["scale"])
    smaller = train(tmp_path / "smaller", recipes[2], values)
    assert not any(update["skipped"] for update in smaller.updates)
    assert_same_bits(smaller, gpu, state=False)
    assert [len(recipe.calls) for recipe in recipes] == [len(gpu.updates)] * 3 == [6] * 3


def test_fp32_has_the_values_of_the_cpu(tmp_path):
    gpu, cpu = (train(tmp_path / device.type, Teacher(), {}, device=device) for device in (CUDA, CPU))
    assert gpu.losses == pytest.approx(cpu.losses, rel=0, abs=5e-7)
    assert largest_difference(gpu, cpu) < 5e-6
    assert {"teacher.0.layer.weight", "teacher.2.bias", "centre", "sum"} <= saved_names(tmp_path / "cuda")


@pytest.mark.parametrize("values", [{"precision": "fp16"}, {"offload": "parameters"}], ids=str)
def test_a_stopped_run_continues_with_its_teacher_on_the_gpu(tmp_path, values):
    straight = train(tmp_path / "straight", Teacher(), values)
    train(tmp_path / "stopped", Teacher(), values, stop="limit", at=5, status="paused")
    assert {"teacher.0.layer.weight", "centre"} <= saved_names(tmp_path / "stopped")
    assert read(tmp_path / "stopped").state["progress"]["update"] in range(1, 6)
    assert_same_bits(train(tmp_path / "stopped", Teacher(), values), straight)


class Frozen(Teacher):
    """Changes nothing after an update."""

    def after_update(self, model):
        pass


def test_frozen_weights_that_nothing_changes_are_not_saved(tmp_path):
    """Their checksums are computed on the GPU at each save."""
    train(tmp_path, Frozen(), {"precision": "fp16", "save_every_updates": 1})
    assert not any(name.startswith("teacher") or name == "centre" for name in saved_names(tmp_path))
