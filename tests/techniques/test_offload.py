"""What is offloaded learns the same. The CPU is host and device here, told apart by another name of the same."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from shoestring.errors import UsageError
from shoestring.settings import Settings
from shoestring.techniques import checkpointing, offload


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4)) for _ in range(3))

    def forward(self, values: Tensor) -> Tensor:
        for block in self.blocks:
            values = block(values)
        return values


OTHER = torch.device("cpu", 0)
"""The CPU, but not equal to `torch.device("cpu")`, so that copies are made as between device and host."""


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters lie on a device of their own."""
    monkeypatch.setattr(offload, "HOST", OTHER)


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
        offload.bring(list(model.blocks), "cpu", arrived=arrived.append)
        assert checkpointing.apply(model, object(), setting) == {"no": 0, "full": 3, "2": 2}[setting]

    assert all(map(torch.equal, trained(hosted), trained()))
    # Four tensors of three blocks in two forwards; in backward each weight but the very first, whose input wants no
    # gradient, or all of a block that is computed again.
    assert len(arrived) > 2 * 12


def test_names_in_the_state_stay() -> None:
    model = Model()
    names = list(model.state_dict())
    offload.bring(list(model.blocks), "cpu", arrived=lambda weight: None)
    model(torch.ones(1, 4))
    assert list(model.state_dict()) == names
    assert all(isinstance(weight, nn.Parameter) for weight in model.blocks[0].parameters())


def stepped(
    name: str, *, hosted: bool, scale: float = 0.0, clip: float | None = None, **options: object
) -> list[Tensor]:
    """Weights after three updates, of which the second overflows where gradients are scaled."""
    torch.manual_seed(0)
    model = Model()
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.1, **options)
    stepping = offload.HostOptimizer(optimizer) if hosted else optimizer
    scaler = torch.amp.GradScaler("cpu", init_scale=scale) if scale else None
    for number in range(3):
        loss = model(torch.ones(2, 4)).square().sum() * (float("inf") if scaler and number == 1 else 1)
        (scaler.scale(loss) if scaler else loss).backward()
        if scaler:
            scaler.unscale_(stepping)
        parameters = [parameter for group in stepping.param_groups for parameter in group["params"]]
        assert [id(parameter) for parameter in parameters] == [id(parameter) for parameter in model.parameters()]
        if clip:
            nn.utils.clip_grad_norm_(parameters, clip)
        if scaler:
            scaler.step(stepping)
            scaler.update()
        else:
            stepping.step()
        stepping.zero_grad()
        assert all(weight.grad is None for weight in model.parameters())
    return [weight.detach() for weight in model.parameters()]


@pytest.mark.parametrize("where", ["one", "apart"])
@pytest.mark.parametrize(
    ("name", "options"), [("AdamW", {}), ("AdamW", {"foreach": True}), ("AdamW", {"fused": True}), ("Adagrad", {})]
)
def test_states_in_host_memory_learn_bit_for_bit_the_same(
    request: pytest.FixtureRequest, where: str, name: str, options: dict[str, bool]
) -> None:
    if where == "apart":
        request.getfixturevalue("apart")
    for more in ({}, {"clip": 0.1}, {"scale": 1024.0, "clip": 0.1}):
        expected = stepped(name, hosted=False, **more, **options)
        assert all(map(torch.equal, stepped(name, hosted=True, **more, **options), expected)), more


def test_states_belong_to_copies_and_are_saved_as_those_of_the_device(apart: None) -> None:
    torch.manual_seed(0)
    model, plain = Model(), Model()
    plain.load_state_dict(model.state_dict())
    own = torch.optim.AdamW(plain.parameters(), lr=0.1)
    hosted = offload.HostOptimizer(torch.optim.AdamW(model.parameters(), lr=0.1))
    for stepping, one in ((own, plain), (hosted, model)):
        one(torch.ones(2, 4)).square().sum().backward()
        stepping.step()
        stepping.zero_grad()
    assert not set(map(id, hosted.state)) & set(map(id, model.parameters()))
    saved, expected = hosted.state_dict(), own.state_dict()
    assert saved["param_groups"] == expected["param_groups"]
    assert saved["state"].keys() == expected["state"].keys()
    for number, state in expected["state"].items():
        assert all(torch.equal(saved["state"][number][key], value) for key, value in state.items())


def test_weights_that_were_loaded_are_those_that_are_stepped(apart: None) -> None:
    """The copies of before would undo what a checkpoint has brought."""
    torch.manual_seed(0)
    one, other = Model(), Model()
    steps = [offload.HostOptimizer(torch.optim.AdamW(model.parameters(), lr=0.1)) for model in (one, other)]
    for model, step, times in ((one, steps[0], 2), (other, steps[1], 1)):
        for _ in range(times):
            model(torch.ones(2, 4)).square().sum().backward()
            step.step()
            step.zero_grad()
    other.load_state_dict(one.state_dict())
    steps[1].load_state_dict(copy.deepcopy(steps[0].state_dict()))
    for model, step in ((one, steps[0]), (other, steps[1])):
        model(torch.ones(2, 4)).square().sum().backward()
        step.step()
    assert all(map(torch.equal, one.parameters(), other.parameters()))


def test_a_weight_inside_and_outside_of_blocks_is_refused() -> None:
    model = Model()
    model.head = nn.Linear(8, 4)
    model.head.weight = model.blocks[0][2].weight
    with pytest.raises(UsageError, match="used outside") as refused:
        offload.at_home(model, list(model.blocks))
    assert refused.value.problems == ("head.weight",)


def test_the_model_moves_but_for_its_blocks_weights(apart: None) -> None:
    model = Model()
    model.head = nn.Linear(4, 4)
    model.register_buffer("counted", torch.zeros(1))
    before = {id(parameter): parameter.data_ptr() for parameter in model.parameters()}
    offload.move(model, object(), Settings(offload="parameters"), torch.device("meta"))
    assert model.head.weight.is_meta and model.counted.is_meta
    assert [parameter.data_ptr() for parameter in model.blocks.parameters()] == [
        before[id(parameter)] for parameter in model.blocks.parameters()
    ]


def test_bitsandbytes_states_stay_on_the_device() -> None:
    from shoestring.techniques import eightbit

    optimizer = eightbit.BlockwiseAdamW(Model().parameters())
    with pytest.raises(UsageError, match="steps on the device"):
        offload.hosted(optimizer, Settings(offload="optimizer"))
    assert offload.hosted(optimizer, Settings()) is optimizer
