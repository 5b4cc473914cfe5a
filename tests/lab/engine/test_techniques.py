"""Recomputed activations and offloaded weights and states change no bit of training on a GPU, also in a run that stops,
and have the CPU's values."""

import pytest
import torch
from torch import nn

from shoestring.base.settings import Settings
from shoestring.techniques import checkpointing as checkpointing_
from shoestring.techniques import offload
from tests.lab.engine.networks import CLASSES, Classifier, dropout
from tests.lab.engine.trained import CPU, CUDA, assert_same_bits, largest_difference, train


class Statistical(nn.Module):
    """A block with what recomputation and offload have to treat: running statistics, random numbers, flat weights."""

    def __init__(self, share):
        super().__init__()
        self.norm, self.dropout = nn.BatchNorm1d(6), dropout(share)
        self.layer, self.outer = nn.LSTM(6, 6, batch_first=True), nn.Linear(6, 6)

    def forward(self, values):
        hidden = self.layer(self.norm(values).unsqueeze(1))[0].squeeze(1)
        return values + self.outer(self.dropout(hidden))


class Deep(Classifier):
    def model(self):
        return nn.Sequential(nn.Sequential(*(Statistical(self.share) for _ in range(3))), nn.Linear(6, CLASSES))


def recipe(name, share, **fields):
    return (
        Deep(network="dense", share=share, **fields)
        if name == "deep"
        else Classifier(network=name, share=share, **fields)
    )


SETTINGS = [
    {"checkpointing": "full"},
    {"checkpointing": "2", "precision": "fp16"},
    {"offload": "optimizer"},
    {"offload": "optimizer", "precision": "fp16", "optimizer_kernel": "fused"},
    {"offload": "parameters"},
    {"offload": "parameters", "checkpointing": "full"},
    {"offload": "parameters", "checkpointing": "2", "precision": "fp16"},
]
SHORT = {"deep": (0, 3, 4, 6), "attending": (0, 5)}
CASES = [
    pytest.param(name, settings, marks=[] if number in SHORT[name] else pytest.mark.slow)
    for name in SHORT
    for number, settings in enumerate(SETTINGS)
]


@pytest.mark.parametrize(("name", "settings"), CASES, ids=str)
def test_same_bits_as_without_also_after_a_stop(tmp_path, name, settings):
    """With weights on the host the norm of the gradient is that of two devices, whose sum is rounded otherwise."""
    clip_norm = None if settings.get("offload") == "parameters" else 1.0
    values = {name: value for name, value in settings.items() if name not in ("checkpointing", "offload")}
    plain = train(tmp_path / "plain", recipe(name, 0.3, clip_norm=clip_norm), values)
    assert plain.evaluations[0] != plain.evaluations[1]
    with_technique = recipe(name, 0.3, clip_norm=clip_norm)
    train(tmp_path / "run", with_technique, settings, stop="limit", at=8, status="paused")
    assert_same_bits(train(tmp_path / "run", with_technique, settings), plain, state=False)


@pytest.mark.parametrize(
    "settings", [{"checkpointing": "full"}, {"offload": "parameters"}, {"offload": "optimizer"}], ids=str
)
@pytest.mark.parametrize("name", ["attending", "deep"])
def test_fp32_has_the_values_of_the_cpu(tmp_path, name, settings):
    gpu = train(tmp_path / "gpu", recipe(name, 0), settings)
    cpu = train(tmp_path / "cpu", recipe(name, 0), settings, device=CPU)
    assert gpu.losses == pytest.approx(cpu.losses, rel=0, abs=5e-7)
    assert largest_difference(gpu, cpu) < 5e-6


@pytest.mark.parametrize("checkpointing", ["no", "full"])
def test_offloaded_weights_are_on_the_gpu_only_while_they_are_used(checkpointing):
    """Before and after a forward without gradients, and after an update, no weight of a block is on the GPU."""
    network, settings = recipe("deep", 0.3), Settings(offload="parameters", checkpointing=checkpointing)
    model = network.model()
    offload.move(model, network, settings, CUDA)
    checkpointing_.apply(model, network, checkpointing)
    values, before = torch.randn(4, 6, device=CUDA), torch.cuda.memory_allocated()
    for _ in range(2):
        with torch.no_grad():
            model(values)
        model(values).sum().backward()
        gradients = [weight.grad for weight in model.parameters()]
        assert [gradient.device.type for gradient in gradients] == ["cpu"] * 24 + ["cuda"] * 2
        model.zero_grad(set_to_none=True)
        del gradients
        torch._C._cuda_clearCublasWorkspaces()
        assert torch.cuda.memory_allocated() == before


def test_states_that_an_optimizer_creates_at_once_are_offloaded(tmp_path):
    network = recipe("deep", 0.3, optimizer=lambda model: torch.optim.Adagrad(model.parameters(), lr=0.01))
    plain = train(tmp_path / "plain", network, {})
    assert_same_bits(train(tmp_path / "run", network, {"offload": "optimizer"}), plain, state=False)
