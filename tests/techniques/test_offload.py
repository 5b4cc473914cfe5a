"""Offloading does not change the training result. The CPU is both host and device here, under two device names."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from shoestring.base.errors import UsageError
from shoestring.base.settings import Settings
from shoestring.techniques import checkpointing, offload


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4)) for _ in range(3))

    def forward(self, values: Tensor) -> Tensor:
        for block in self.blocks:
            values = block(values)
        return values


OTHER_CPU = torch.device("cpu", 0)
"""The CPU, but not equal to `torch.device("cpu")`, so that copies are made as between device and host."""


@pytest.fixture
def separate_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters are on another device than the host."""
    monkeypatch.setattr(offload, "HOST", OTHER_CPU)


def train_two_updates(offload_weights: Callable[[Model], None] | None = None) -> list[Tensor]:
    """Return the weights after two updates."""
    torch.manual_seed(0)
    model = Model()
    if offload_weights:
        offload_weights(model)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    stepping = offload.HostOptimizer(optimizer) if offload_weights else optimizer
    for _ in range(2):
        model(torch.ones(2, 4)).square().sum().backward()
        stepping.step()
        stepping.zero_grad()
        assert all(weight.grad is None for weight in model.parameters())
    return [weight.detach() for weight in model.parameters()]


@pytest.mark.parametrize("setting", ["no", "full", "2"])
def test_offloaded_weights_are_trained_the_same(setting: str) -> None:
    copies: list[Tensor] = []

    def offload_weights(model: Model) -> None:
        offload.copy_weights_on_use(list(model.blocks), "cpu", on_copy=copies.append)
        assert checkpointing.apply(model, object(), setting) == {"no": 0, "full": 3, "2": 2}[setting]

    assert all(map(torch.equal, train_two_updates(offload_weights), train_two_updates()))
    # Four tensors of three blocks in two forwards; in backward each weight but the first, whose input needs no
    # gradient, or all weights of a recomputed block.
    assert len(copies) > 2 * 12


def test_offload_keeps_the_names_in_the_state_dict() -> None:
    model = Model()
    names = list(model.state_dict())
    offload.copy_weights_on_use(list(model.blocks), "cpu", on_copy=lambda weight: None)
    model(torch.ones(1, 4))
    assert list(model.state_dict()) == names
    assert all(isinstance(weight, nn.Parameter) for weight in model.blocks[0].parameters())


def train_three_updates(
    name: str, *, on_host: bool, scale: float = 0.0, clip: float | None = None, **options: object
) -> list[Tensor]:
    """Return the weights after three updates, of which the second overflows if gradients are scaled."""
    torch.manual_seed(0)
    model = Model()
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.1, **options)
    stepping = offload.HostOptimizer(optimizer) if on_host else optimizer
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


@pytest.mark.parametrize("devices", ["same", "separate"])
@pytest.mark.parametrize(
    ("name", "options"), [("AdamW", {}), ("AdamW", {"foreach": True}), ("AdamW", {"fused": True}), ("Adagrad", {})]
)
def test_states_in_host_memory_give_identical_bits(
    request: pytest.FixtureRequest, devices: str, name: str, options: dict[str, bool]
) -> None:
    if devices == "separate":
        request.getfixturevalue("separate_host")
    for changes in ({}, {"clip": 0.1}, {"scale": 1024.0, "clip": 0.1}):
        expected = train_three_updates(name, on_host=False, **changes, **options)
        weights = train_three_updates(name, on_host=True, **changes, **options)
        assert all(map(torch.equal, weights, expected)), changes


def test_state_dict_is_the_same_as_without_offload(separate_host: None) -> None:
    torch.manual_seed(0)
    model, plain = Model(), Model()
    plain.load_state_dict(model.state_dict())
    plain_optimizer = torch.optim.AdamW(plain.parameters(), lr=0.1)
    host_optimizer = offload.HostOptimizer(torch.optim.AdamW(model.parameters(), lr=0.1))
    for stepping, trained_model in ((plain_optimizer, plain), (host_optimizer, model)):
        trained_model(torch.ones(2, 4)).square().sum().backward()
        stepping.step()
        stepping.zero_grad()
    assert not set(map(id, host_optimizer.state)) & set(map(id, model.parameters()))
    saved, expected = host_optimizer.state_dict(), plain_optimizer.state_dict()
    assert saved["param_groups"] == expected["param_groups"]
    assert saved["state"].keys() == expected["state"].keys()
    for number, state in expected["state"].items():
        assert all(torch.equal(saved["state"][number][key], value) for key, value in state.items())


def test_states_of_another_process_are_dropped(separate_host: None) -> None:
    model = Model()
    optimizer = offload.HostOptimizer(torch.optim.Adagrad(model.parameters(), lr=0.1))
    first, *others = model.parameters()
    offload.drop_states(optimizer, others)
    (group,) = optimizer.param_groups
    group["params"] = [first]
    before = [weight.detach().clone() for weight in model.parameters()]
    model(torch.ones(2, 4)).square().sum().backward()
    optimizer.step()
    is_changed = [not torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True)]
    assert is_changed == [True] + [False] * len(others) and len(optimizer.state) == 1
    assert offload.stepped_parameters(optimizer) == list(optimizer.state)


def test_step_updates_loaded_weights(separate_host: None) -> None:
    """Outdated copies in host memory would overwrite the weights of a checkpoint."""
    torch.manual_seed(0)
    source, target = Model(), Model()
    optimizers = [offload.HostOptimizer(torch.optim.AdamW(model.parameters(), lr=0.1)) for model in (source, target)]
    for model, optimizer, updates in ((source, optimizers[0], 2), (target, optimizers[1], 1)):
        for _ in range(updates):
            model(torch.ones(2, 4)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    target.load_state_dict(source.state_dict())
    optimizers[1].load_state_dict(copy.deepcopy(optimizers[0].state_dict()))
    for model, optimizer in ((source, optimizers[0]), (target, optimizers[1])):
        model(torch.ones(2, 4)).square().sum().backward()
        optimizer.step()
    assert all(map(torch.equal, source.parameters(), target.parameters()))


def test_weight_shared_outside_of_blocks_is_refused() -> None:
    model = Model()
    model.head = nn.Linear(8, 4)
    model.head.weight = model.blocks[0][2].weight
    with pytest.raises(UsageError, match="used outside") as caught:
        offload.block_parameters_on_host(model, list(model.blocks))
    assert caught.value.problems == ("head.weight",)


def test_everything_but_the_weights_of_blocks_is_moved(separate_host: None) -> None:
    model = Model()
    model.head = nn.Linear(4, 4)
    model.register_buffer("count", torch.zeros(1))
    before = {id(parameter): parameter.data_ptr() for parameter in model.parameters()}
    offload.move(model, object(), Settings(offload="parameters"), torch.device("meta"))
    assert model.head.weight.is_meta and model.count.is_meta
    assert [parameter.data_ptr() for parameter in model.blocks.parameters()] == [
        before[id(parameter)] for parameter in model.blocks.parameters()
    ]


def test_states_of_bitsandbytes_are_not_offloaded() -> None:
    from shoestring.techniques import eightbit

    optimizer = eightbit.BlockwiseAdamW(Model().parameters())
    with pytest.raises(UsageError, match="step on the device"):
        offload.offloaded_optimizer(optimizer, Settings(offload="optimizer"))
    assert offload.offloaded_optimizer(optimizer, Settings()) is optimizer


class Moving(nn.Linear):
    """Moves its weight into another storage, as layers of cuDNN do, before it makes tensors that backward needs."""

    def forward(self, values: Tensor) -> Tensor:
        self.weight.data = self.weight.data.clone()
        for _ in range(4):
            values = values.tanh()
        return super().forward(values)


def test_a_storage_that_was_freed_in_the_forward_is_not_taken_for_an_activation() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(Moving(4, 4), Moving(4, 4))
    model, values = copy.deepcopy(plain), torch.randn(4, 4)
    offload.copy_weights_on_use(list(model), "cpu", on_copy=lambda _: None)
    for network in (plain, model):
        network(values).square().sum().backward()
    for weight, expected in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(weight.grad, expected.grad)  # type: ignore[arg-type]


def test_recurrent_layers_do_not_keep_the_copies_of_their_weights() -> None:
    layer = nn.LSTM(4, 4)
    offload.copy_weights_on_use([layer], "cpu", on_copy=lambda _: None)
    layer(torch.ones(2, 3, 4))
    assert all(map(lambda flat, weight: flat is weight, layer._flat_weights, layer.parameters()))


def test_a_block_keeps_its_weights_if_a_copy_runs_out_of_memory() -> None:
    model, copies = Model(), list[Tensor]()

    def fail_at_the_second(copied: Tensor) -> None:
        copies.append(copied)
        if len(copies) == 2:
            raise torch.OutOfMemoryError("CUDA out of memory")

    before = list(model.parameters())
    offload.copy_weights_on_use(list(model.blocks), "cpu", on_copy=fail_at_the_second)
    with pytest.raises(torch.OutOfMemoryError):
        model(torch.ones(2, 4))
    assert len(before) == len(list(model.parameters())) and all(map(lambda a, b: a is b, before, model.parameters()))
