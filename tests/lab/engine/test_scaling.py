"""The loss scale of fp16 on a GPU: steps that overflow are skipped and repeated with half the scale."""

import copy
from functools import partial

import pytest
import torch

from shoestring.base.errors import CheckpointError, RunError
from shoestring.recipe.finding import choose
from shoestring.training.engine.building import build
from tests.lab.engine.networks import Classifier
from tests.lab.engine.trained import CPU, CUDA, assert_same_bits, train

SKIPPED = 7
"""How often the scale is halved until the gradients of the steep loss are finite in every update."""


class Steep(Classifier):
    def loss(self, model, batch):
        return 128 * super().loss(model, batch)


@pytest.fixture
def scaler(monkeypatch):
    """A function that sets the arguments of the scalers that are built from now on."""
    own = torch.amp.GradScaler
    return lambda **arguments: monkeypatch.setattr(torch.amp, "GradScaler", partial(own, **arguments))


@pytest.mark.parametrize("kernel", ["for-loop", "foreach", "fused"])
def test_an_overflow_has_no_other_consequence_than_the_smaller_scale(tmp_path, scaler, kernel):
    """Buffers of BatchNorm included. A scale that is a power of two is exact."""
    values = {"precision": "fp16", "optimizer_kernel": kernel}
    gpu = train(tmp_path / "gpu", Steep(network="dense"), values)
    assert [update["skipped"] for update in gpu.updates] == [SKIPPED - 1, 1, 0, 0, 0, 0]
    assert gpu.state["scaler"]["scale"] == 2.0 ** (16 - SKIPPED)
    assert gpu.state["scaler"]["_growth_tracker"] == 5  # the updates since the last overflow
    assert sum(event["skipped"] for event in gpu.of_kind("progress")) == SKIPPED
    scaler(init_scale=2.0 ** (16 - SKIPPED))
    smaller = train(tmp_path / "smaller", Steep(network="dense"), values)
    assert_same_bits(smaller, gpu, state=False)
    assert smaller.updates == [{**update, "skipped": 0} for update in gpu.updates]


def test_overflows_are_those_of_the_cpu(tmp_path):
    gpu, cpu = (
        train(tmp_path / device.type, Steep(network="dense"), {"precision": "fp16"}, device=device)
        for device in (torch.device("cuda"), CPU)
    )
    assert gpu.state["scaler"] == cpu.state["scaler"]
    assert [update["skipped"] for update in gpu.updates] == [update["skipped"] for update in cpu.updates]


@pytest.mark.parametrize("at", [1, 2 * SKIPPED, 2 * SKIPPED + 4, 2 * SKIPPED + 12])
def test_a_run_that_stops_between_overflows_continues_with_the_same_scale(tmp_path, scaler, at):
    """The scale grows after two steps, and the next one overflows."""
    scaler(growth_interval=2)
    values, recipe = {"precision": "fp16"}, Steep(network="dense", share=0.3)
    straight = train(tmp_path / "straight", recipe, values)
    assert sum(update["skipped"] for update in straight.updates[1:]) > 0
    stopped = train(tmp_path / "stopped", recipe, values, stop="limit", at=at, status="paused")
    assert stopped.state["progress"]["update"] in range(1, 6)
    assert_same_bits(train(tmp_path / "stopped", recipe, values), straight)


def test_gradients_that_overflow_at_every_scale_end_the_run(tmp_path):
    class Infinite(Classifier):
        def loss(self, model, batch):
            loss = super().loss(model, batch)
            return loss + (model.outer.weight * 0).abs().sqrt().sum()  # whose derivative at zero is infinite

    with pytest.raises(RunError, match="the gradient of update 1 is"):
        train(tmp_path, Infinite(network="dense"), {"precision": "fp16"})


def test_a_damaged_state_of_the_scaler_changes_nothing():
    """It is loaded after the optimizer's, which is then as it was."""
    loaded, settings = choose(Classifier(network="dense"), {"precision": "fp16", "micro_batch": 4})
    states = [build(loaded, settings, CUDA) for _ in range(2)]
    for state in states:
        for parameter in state.model.parameters():
            parameter.grad = torch.ones_like(parameter)
    states[0].optimizer.step()
    damaged = states[0].pack() | {"scaler": {"scale": 2.0}}
    states[1].optimizer.step()
    states[1].optimizer.step()
    before = copy.deepcopy(states[1].optimizer.state_dict())
    with pytest.raises(CheckpointError, match="cannot be restored: KeyError"):
        states[1].restore(damaged)
    torch.testing.assert_close(states[1].optimizer.state_dict(), before, rtol=0, atol=0)
    assert states[1].mixed_precision.scaler.get_scale() == 2.0**16
