"""Every optimizer of torch with every kernel that it has on a GPU gives the CPU's weights and states."""

import itertools

import pytest
import torch
from torch.optim.lr_scheduler import ExponentialLR, OneCycleLR

from shoestring.base.errors import UsageError
from shoestring.techniques import kernels
from shoestring.training.engine.precision import mixed_precision
from shoestring.training.engine.update import update
from tests.lab.engine.networks import Classifier
from tests.lab.engine.trained import CPU, CUDA, assert_same_bits, largest_difference, on_both, train

OPTIMIZERS = {
    "Adam": lambda weights: torch.optim.Adam(weights, lr=0.01, weight_decay=0.1),
    "Adam, amsgrad": lambda weights: torch.optim.Adam(weights, lr=0.01, amsgrad=True),
    "AdamW": lambda weights: torch.optim.AdamW(weights, lr=0.01),
    "AdamW, maximize": lambda weights: torch.optim.AdamW(weights, lr=0.01, maximize=True),
    "SGD": lambda weights: torch.optim.SGD(weights, lr=0.1),
    "SGD, nesterov": lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9, nesterov=True),
    "RMSprop": lambda weights: torch.optim.RMSprop(weights, lr=0.01, momentum=0.5, centered=True),
    "Adagrad": lambda weights: torch.optim.Adagrad(weights, lr=0.01),
    "Adadelta": lambda weights: torch.optim.Adadelta(weights, lr=1.0),
    "Adamax": lambda weights: torch.optim.Adamax(weights, lr=0.01),
    "NAdam": lambda weights: torch.optim.NAdam(weights, lr=0.01),
    "RAdam": lambda weights: torch.optim.RAdam(weights, lr=0.01),
    "ASGD": lambda weights: torch.optim.ASGD(weights, lr=0.1),
    "Rprop": lambda weights: torch.optim.Rprop(weights, lr=0.01),
    "Adafactor": lambda weights: torch.optim.Adafactor(weights, lr=0.01),
}
TOLERANCE = 3e-7
"""Of the kernels that make the same arithmetic in another order than the one for one tensor at a time."""
CASES = [
    (name, kernel)
    for name, kernel in itertools.product(OPTIMIZERS, (None, "for-loop", "foreach", "fused"))
    if kernel != "fused" or name.startswith(("Adam,", "AdamW", "SGD")) or name == "Adam"
]


def updated(name, device, kernel=None):
    """Return the weights and the optimizer's states after four updates with clipped gradients, on the CPU."""
    torch.manual_seed(0)
    recipe = Classifier(network="dense")
    model, (inputs, labels) = recipe.model(), recipe.data()["train"][:16]
    model.to(device)
    optimizer = OPTIMIZERS[name](model.parameters())
    kernels.choose(optimizer, kernel)
    batches = list(zip(inputs.to(device).split(4), labels.to(device).split(4), strict=True))
    for _ in range(4):
        sized = [(batch, 4) for batch in batches]
        arguments = {"samples": 16, "mixed_precision": mixed_precision("fp32", device), "clip_norm": 0.1}
        assert update(model, optimizer, recipe.loss, sized, **arguments).stepped
    states = [value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)]
    return [tensor.cpu() for tensor in (*model.state_dict().values(), *states)]


@pytest.mark.parametrize(("name", "kernel"), CASES)
def test_each_kernel_gives_the_values_of_the_cpu(name, kernel):
    expected = updated(name, CPU, "for-loop")
    for tensor, other in zip(updated(name, CUDA, kernel), expected, strict=True):
        torch.testing.assert_close(tensor, other, rtol=0, atol=0 if kernel == "for-loop" else TOLERANCE)


def test_a_kernel_that_torch_has_for_cpus_alone_is_refused(tmp_path):
    recipe = Classifier(network="dense", optimizer=lambda model: torch.optim.Adagrad(model.parameters()))
    with pytest.raises(UsageError, match="optimizer_kernel=fused: Adagrad has for-loop, foreach"):
        train(tmp_path, recipe, {"optimizer_kernel": "fused"})


class Scheduled(Classifier):
    """With a scheduler of torch instead of a factor on the learning rate, and two groups of weights."""

    schedule = None

    def __init__(self, scheduler=lambda optimizer: OneCycleLR(optimizer, [0.1, 0.2], total_steps=7)):
        super().__init__(network="dense", optimizer=self.build)
        self._scheduler = scheduler

    def build(self, model):
        weights = list(model.parameters())
        optimizer = torch.optim.AdamW([{"params": weights[:2]}, {"params": weights[2:], "lr": 0.02}], lr=0.01)
        return [optimizer], [{"scheduler": self._scheduler(optimizer), "interval": "step"}]


@pytest.mark.parametrize("kernel", ["foreach", "fused"])
def test_schedulers_set_the_rates_of_the_cpu(tmp_path, kernel):
    gpu, cpu = on_both(tmp_path, Scheduled(), {"optimizer_kernel": kernel})
    rates = [[event["learning_rate"] for event in trained.of_kind("progress")][-1] for trained in (gpu, cpu)]
    assert rates[0] == rates[1] != 0.01
    assert gpu.state["optimizer"] == cpu.state["optimizer"]
    assert gpu.losses == pytest.approx(cpu.losses, rel=0, abs=1e-6)
    assert largest_difference(gpu, cpu) < 1e-6


def test_a_stopped_run_continues_with_the_rates_of_its_scheduler(tmp_path):
    """Each step of the scheduler multiplies the rates, which the optimizer's state in the checkpoint has as well."""
    recipe = Scheduled(lambda optimizer: ExponentialLR(optimizer, 0.5))
    straight = train(tmp_path / "straight", recipe, {})
    train(tmp_path / "stopped", recipe, {}, stop="limit", at=7, status="paused")
    assert_same_bits(train(tmp_path / "stopped", recipe, {}), straight)
