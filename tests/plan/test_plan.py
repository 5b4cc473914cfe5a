"""Plans of real recipes, traced."""

import dataclasses
import json

import pytest
import torch
from torch import nn

import shoestring
from shoestring.hardware import targets
from shoestring.plan.plan import make_plan
from shoestring.recipe import live
from shoestring.settings import Settings


@pytest.fixture(scope="module")
def temporal():
    return shoestring.plan("temporal", on="kaggle-t4")


def test_a_plan_answers_everything(temporal):
    answer = json.loads(json.dumps(temporal.json(), allow_nan=False))
    assert answer["verdict"] == "fits"
    assert answer["settings"]["micro_batch"] == 256
    assert answer["memory"]["parameters"] == {"total": 625_726, "trainable": 625_726}
    memory, time, disk = answer["memory"], answer["time"], answer["disk"]
    assert sum(part["bytes"] for part in memory["parts"]) == memory["peak_bytes"]
    assert memory["low_bytes"] <= memory["peak_bytes"] <= memory["high_bytes"] <= memory["capacity_bytes"]
    assert all(part["source"] for part in memory["parts"])
    for name in ("update_seconds", "epoch_seconds", "total_seconds"):
        assert time[f"low_{name}"] < time[name] < time[f"high_{name}"]
    assert time["total_seconds"] == pytest.approx(50 * time["epoch_seconds"])
    # Weights, two moments and steps in fp32.
    assert disk["full_checkpoint_bytes"] == pytest.approx(625_726 * 12, rel=0.02)
    assert disk["peak_bytes"] < disk["limit_bytes"] == 20e9
    assert sum(session["updates"] for session in answer["sessions"]) == 150
    assert any("micro_batch" in reason for reason in answer["reasons"])
    assert any("precision" in reason for reason in answer["reasons"])


def test_the_same_question_has_the_same_answer(temporal):
    assert shoestring.plan("temporal", on="kaggle-t4").json() == temporal.json()


def test_of_two_gpus_one_is_used_and_it_is_said():
    plan = shoestring.plan("temporal", on="kaggle-t4x2", size="tiny")
    assert any("one of the 2 GPUs" in reason for reason in plan.reasons)


class Wide:
    """Twelve MiB of weights for each sample that is on the GPU."""

    effective_batch = 8

    def model(self):
        return nn.Sequential(*[nn.Linear(512, 512) for _ in range(12)])

    def batch(self, size):
        return torch.zeros(size * 4096, 512)

    def loss(self, model, batch):
        return model(batch).square().mean()


def small(gib):
    t4 = targets.find("t4")
    return dataclasses.replace(t4, device=dataclasses.replace(t4.device, memory_bytes=int(gib * 2**30)))


def test_a_smaller_gpu_gets_a_smaller_microbatch_for_the_same_update():
    wanted = Settings(precision="fp32")
    sizes = [make_plan(live(Wide()), small(gib), wanted) for gib in (4, 1.2)]
    assert all(plan.fits for plan in sizes)
    assert sizes[0].settings.micro_batch == 8
    assert sizes[1].settings.micro_batch < 8
    assert any("largest halving of 8 that fits" in reason for reason in sizes[1].reasons)


def test_without_data_there_is_an_update_but_no_total():
    plan = make_plan(live(Wide()), small(4), Settings(precision="fp32"))
    assert plan.time.predicted.update_seconds > 0
    assert plan.time.predicted.total_seconds is None
    assert plan.sessions == ()
    assert any("no data()" in reason for reason in plan.reasons)


def test_a_compiled_step_is_not_estimated_and_that_is_said():
    plan = make_plan(live(Wide()), small(4), Settings(precision="fp32", micro_batch=8, compile="yes"))
    assert plan.settings.compile == "yes"
    assert any("compiled steps are not estimated" in reason for reason in plan.reasons)


def test_what_cannot_fit_is_a_verdict_with_its_numbers():
    plan = make_plan(live(Wide()), small(0.2), Settings(precision="fp32"))
    assert plan.verdict == "does not fit"
    assert not plan.memory.fits
    assert any("not even that fits" in reason for reason in plan.reasons)
    assert plan.time.predicted.update_seconds > 0
