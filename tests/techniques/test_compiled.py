"""Compiled blocks compute what they computed before, and a machine or a setting that does not let them is named."""

import copy
import importlib
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from shoestring.errors import RunError, UsageError
from shoestring.settings import Settings
from shoestring.techniques import checkpointing, compiled

CPU = torch.device("cpu")
YES = Settings(compile="yes")

# torch's own compiler uses what torch calls deprecated.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def anew() -> Iterator[None]:
    """Nothing that an earlier test had compiled, nor the limits it set."""
    torch._dynamo.reset()
    with torch._dynamo.config.patch(
        recompile_limit=8, accumulated_recompile_limit=256, fail_on_recompile_limit_hit=False
    ):
        yield


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm, self.outer = nn.Linear(8, 32), nn.BatchNorm1d(32), nn.Linear(32, 8)

    def forward(self, values: Tensor) -> Tensor:
        return values + self.outer(torch.tanh(self.norm(self.inner(values))))


class OfBlocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, values: Tensor) -> Tensor:
        for block in self.blocks:
            values = block(values)
        return values.square().mean()


def learnt(model: nn.Module) -> dict[str, Tensor]:
    """Gradients and buffers after two microbatches."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(2):
        model(torch.randn(6, 8, generator=generator)).backward()
    return {name: x.grad for name, x in model.named_parameters() if x.grad is not None} | dict(model.named_buffers())


def close(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """To some roundings of fp32: sums of 32 numbers near 1."""
    return one.keys() == other.keys() and all(
        torch.allclose(one[name], other[name], rtol=1e-5, atol=1e-6) for name in one
    )


def test_the_same_is_computed_also_again_in_backward_and_names_stay() -> None:
    plain, model = OfBlocks(), OfBlocks()
    model.load_state_dict(plain.state_dict())
    again = copy.deepcopy(model)
    names = list(model.state_dict())
    assert compiled.apply(model, object(), YES, CPU) == 2
    assert list(model.state_dict()) == names
    expected = learnt(plain)
    assert close(learnt(model), expected)
    # After the first updates, as where memory runs out.
    compiled.apply(again, object(), YES, CPU)
    checkpointing.apply(again, object(), "full")
    assert close(learnt(again), expected)
    kept: list[int] = []
    for each in (model, again):
        kept.append(0)

        def keep(saved: Tensor) -> Tensor:
            kept[-1] += saved.nbytes
            return saved

        with saved_tensors_hooks(keep, lambda saved: saved):
            each(torch.zeros(64, 8))
    assert kept[1] < kept[0] / 2


def test_a_model_without_blocks_is_compiled_as_one() -> None:
    model = nn.Sequential(nn.Linear(8, 4), nn.Tanh())
    assert compiled.apply(model, object(), YES, CPU) == 1
    torch._dynamo.utils.counters.clear()
    model(torch.zeros(2, 8))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_nothing_is_compiled_unless_it_is_asked_for() -> None:
    model = OfBlocks()
    assert compiled.apply(model, object(), Settings(), CPU) == 0
    assert "forward" not in vars(model.blocks[0])


def test_the_compiler_is_told_to_be_deterministic_where_torch_is() -> None:
    before = torch.get_deterministic_debug_mode()
    inductor = importlib.import_module("torch._inductor.config")
    with inductor.patch(deterministic=False):
        torch.set_deterministic_debug_mode("warn")
        try:
            compiled.apply(OfBlocks(), object(), YES, CPU)
            assert inductor.deterministic and torch.get_deterministic_debug_mode() == 1
        finally:
            torch.set_deterministic_debug_mode(before)


def test_one_shape_too_many_is_an_error_not_another_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "SHAPES", 8)
    model = nn.Tanh()
    compiled.apply(model, object(), YES, CPU)
    monkeypatch.setattr(torch._dynamo.config, "recompile_limit", 1)
    model(torch.zeros(2))
    with pytest.raises(RunError, match="one more") as refused:
        model(torch.zeros(3))
    assert "compile=no" in str(refused.value)


def test_blocks_of_several_kinds_have_the_shapes_of_each() -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(size, size), nn.Tanh()) for size in (2, 2, 3)))
    compiled.apply(model, object(), YES, CPU)
    assert torch._dynamo.config.recompile_limit == 2 * compiled.SHAPES


def test_what_a_machine_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled.require(YES, CPU)
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(UsageError, match=r"no C\+\+ compiler 'no-such-compiler'"):
        compiled.require(YES, CPU)
    gpu = torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla P100")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (6, 0))
    with pytest.raises(UsageError, match=r"7\.0, Tesla P100 has 6\.0"):
        compiled.require(YES, gpu)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr(compiled, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="not installed: triton"):
        compiled.require(YES, gpu)
    monkeypatch.setattr(compiled, "find_spec", lambda name: object())
    compiled.require(YES, gpu)


def test_weights_that_come_and_go_are_not_compiled() -> None:
    with pytest.raises(UsageError, match="offload=optimizer"):
        compiled.require(Settings(compile="yes", offload="parameters"), CPU)


def test_the_compiler_is_known_where_it_decides_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    assert compiled.toolchain(Settings(), CPU) is None
    assert "g++" in str(compiled.toolchain(YES, CPU))
