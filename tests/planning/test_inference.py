"""The plan of predictions: the batch that fits and is fastest."""

import json
from dataclasses import replace

import pytest
import torch
from torch import nn

import shoestring
from shoestring.base.settings import Settings
from shoestring.base.units import MIB
from shoestring.hardware.targets import find
from shoestring.planning.inference import plan_inference
from shoestring.recipe.finding import choose


class Wide:
    """A recipe whose activations are much larger than its weights."""

    def model(self):
        return nn.Sequential(nn.Linear(16, 1 << 20), nn.ReLU(), nn.Linear(1 << 20, 2))

    def batch(self, size):
        return torch.zeros(size, 16), torch.zeros(size, dtype=torch.int64)

    def loss(self, model, batch):
        return nn.functional.cross_entropy(model(batch[0]), batch[1])


class Generating(Wide):
    """A recipe whose predictions keep a cache that grows."""

    def inference(self, model, batch):
        for step in (1, 2):
            yield [batch[0].new_zeros(len(batch[0]), step, 1 << 20)]


class Small(Wide):
    """A recipe whose time on a fast CPU is that of Python, and on a slow one that of its activations."""

    def model(self):
        return nn.Sequential(nn.Linear(16, 1 << 10), nn.ReLU(), nn.Linear(1 << 10, 2))


@pytest.fixture(scope="module")
def plan():
    return shoestring.plan_inference(Wide(), "t4")


def test_memory_has_no_gradients_and_no_optimizer(plan):
    training = shoestring.estimate(Wide(), "t4", micro_batch=plan.settings.micro_batch, precision="fp32")
    parts = {part.name: part.bytes for part in plan.memory.parts}
    assert plan.fits and parts.keys().isdisjoint({"gradients", "optimizer states", "activations"})
    assert parts["weights"] == pytest.approx(plan.facts.weight_bytes, rel=1e-4)  # blocks are rounded
    assert plan.memory.peak_bytes < training.memory.peak_bytes / 2


def test_measured_rates_of_a_cpu_change_the_speed_alone():
    loaded, _ = choose(Small(), {})
    cpu = find("cpu")
    plans = [
        plan_inference(loaded, replace(cpu, device=replace(cpu.device, fp32_flops=1e13, bandwidth=rate)), Settings())
        for rate in (1e8, 1e13)
    ]
    assert plans[0].settings == plans[1].settings
    assert plans[0].inputs_per_second < plans[1].inputs_per_second
    assert plans[0].target.device.bandwidth == 1e8


def test_faster_precision_and_batch_are_chosen(plan):
    assert plan.settings.precision == "fp16"
    single = shoestring.plan_inference(Wide(), "t4", micro_batch=1, precision="fp32")
    assert single.settings.micro_batch == 1 < plan.settings.micro_batch
    assert plan.inputs_per_second > 2 * single.inputs_per_second
    assert json.loads(json.dumps(plan.json()))["verdict"] == "fits"
    assert "inputs a second" in str(plan) and "inputs a second" in plan._repr_html_()


def test_batch_of_a_small_device_is_smaller(plan):
    loaded, _ = choose(Wide(), {})
    target = find("t4")
    small = replace(target, device=replace(target.device, memory_bytes=target.device.context_bytes[2] + 420 * MIB))
    smaller = plan_inference(loaded, small, Settings(precision="fp32"))
    assert smaller.fits and 1 <= smaller.settings.micro_batch < 64
    tiny = replace(target, device=replace(target.device, memory_bytes=100 * MIB))
    assert plan_inference(loaded, tiny, Settings()).verdict == "does not fit"


def test_cache_of_generated_texts_counts():
    plan = shoestring.plan_inference(Generating(), "t4", micro_batch=4)
    assert {part.name: part.bytes for part in plan.memory.parts}["KV cache"] >= 4 * 2 * (4 << 20)
    assert plan.inputs_per_second is None and "not predicted" in str(plan)


@pytest.mark.slow
def test_command_prints_plans_of_several_targets(run_command):
    status, out, _ = run_command(
        "plan", "temporal", "--for", "predict", "--on", "t4", "--on", "p100", "--set", "size=tiny", "--json"
    )
    assert status == 0 and [plan["target"] for plan in json.loads(out)] == ["t4", "p100"]
