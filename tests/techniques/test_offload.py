"""Where host and device are one, offloading changes nothing but the way."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from shoestring.techniques import checkpointing, offload


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4)) for _ in range(3))

    def forward(self, values: Tensor) -> Tensor:
        for block in self.blocks:
            values = block(values)
        return values


def trained(hosted: Callable[[Model], None] | None = None) -> list[Tensor]:
    """Weights after two updates."""
    torch.manual_seed(0)
    model = Model()
    if hosted:
        hosted(model)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    stepping = offload.HostOptimizer(optimizer) if hosted else optimizer
    for _ in range(2):
        model(torch.ones(2, 4)).square().sum().backward()
        stepping.step()
        stepping.zero_grad()
        assert all(weight.grad is None for weight in model.parameters())
    return [weight.detach() for weight in model.parameters()]


@pytest.mark.parametrize("setting", ["no", "full", "2"])
def test_weights_that_come_and_go_learn_the_same(setting: str) -> None:
    arrived: list[Tensor] = []

    def hosted(model: Model) -> None:
        again = checkpointing.chosen(model, object(), setting)
        offload.bring(list(model.blocks), "cpu", again=again, arrived=arrived.append)
        assert checkpointing.apply(model, object(), setting) == {"no": 0, "full": 3, "2": 2}[setting]

    assert all(map(torch.equal, trained(hosted), trained()))
    # Four tensors of three blocks in two forwards; in backward each weight but the very first, whose input wants no
    # gradient, or all of a block that is computed again.
    assert len(arrived) > 2 * 12


def test_names_in_the_state_stay() -> None:
    model = Model()
    names = list(model.state_dict())
    offload.bring(list(model.blocks), "cpu", again=(), arrived=lambda weight: None)
    model(torch.ones(1, 4))
    assert list(model.state_dict()) == names
    assert all(isinstance(weight, nn.Parameter) for weight in model.blocks[0].parameters())
