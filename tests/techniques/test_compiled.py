"""Compiled blocks compute the same results, and machines or settings that do not allow compilation are refused."""

import copy
import importlib
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from shoestring.base.errors import RunError, UsageError
from shoestring.base.settings import Settings
from shoestring.techniques import checkpointing, compiled

CPU = torch.device("cpu")
YES = Settings(compile="yes")

# torch's own compiler uses deprecated parts of torch.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def reset_compiler() -> Iterator[None]:
    """Drop the compiled code and the limits of earlier tests."""
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


class BlockModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, values: Tensor) -> Tensor:
        for block in self.blocks:
            values = block(values)
        return values.square().mean()


def train(model: nn.Module) -> dict[str, Tensor]:
    """Return the gradients and buffers after two microbatches."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(2):
        model(torch.randn(6, 8, generator=generator)).backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    return gradients | dict(model.named_buffers())


def are_close(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    """Compare up to some roundings of fp32: sums of 32 numbers near 1."""
    return first.keys() == second.keys() and all(
        torch.allclose(first[name], second[name], rtol=1e-5, atol=1e-6) for name in first
    )


def test_compiled_and_checkpointed_blocks_compute_the_same() -> None:
    plain, model = BlockModel(), BlockModel()
    model.load_state_dict(plain.state_dict())
    checkpointed = copy.deepcopy(model)
    names = list(model.state_dict())
    assert compiled.apply(model, object(), YES, CPU) == 2
    assert list(model.state_dict()) == names
    expected = train(plain)
    assert are_close(train(model), expected)
    # After the first updates, as on out-of-memory.
    compiled.apply(checkpointed, object(), YES, CPU)
    checkpointing.apply(checkpointed, object(), "full")
    assert are_close(train(checkpointed), expected)
    saved_bytes: list[int] = []
    for compiled_model in (model, checkpointed):
        saved_bytes.append(0)

        def count_bytes(saved: Tensor) -> Tensor:
            saved_bytes[-1] += saved.nbytes
            return saved

        with saved_tensors_hooks(count_bytes, lambda saved: saved):
            compiled_model(torch.zeros(64, 8))
    assert saved_bytes[1] < saved_bytes[0] / 2


def test_model_without_blocks_is_compiled_as_a_whole() -> None:
    model = nn.Sequential(nn.Linear(8, 4), nn.Tanh())
    assert compiled.apply(model, object(), YES, CPU) == 1
    torch._dynamo.utils.counters.clear()
    model(torch.zeros(2, 8))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_nothing_is_compiled_by_default() -> None:
    model = BlockModel()
    assert compiled.apply(model, object(), Settings(), CPU) == 0
    assert "forward" not in vars(model.blocks[0])


def test_compiler_is_deterministic_if_torch_is() -> None:
    before = torch.get_deterministic_debug_mode()
    inductor = importlib.import_module("torch._inductor.config")
    with inductor.patch(deterministic=False):
        torch.set_deterministic_debug_mode("warn")
        try:
            compiled.apply(BlockModel(), object(), YES, CPU)
            assert inductor.deterministic and torch.get_deterministic_debug_mode() == 1
        finally:
            torch.set_deterministic_debug_mode(before)


def test_exceeded_shape_limit_raises_instead_of_running_uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "SHAPES", 8)
    model = nn.Tanh()
    compiled.apply(model, object(), YES, CPU)
    monkeypatch.setattr(torch._dynamo.config, "recompile_limit", 1)
    model(torch.zeros(2))
    with pytest.raises(RunError, match="one more") as caught:
        model(torch.zeros(3))
    assert "compile=no" in str(caught.value)


def test_shape_limit_counts_each_kind_of_block() -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(size, size), nn.Tanh()) for size in (2, 2, 3)))
    compiled.apply(model, object(), YES, CPU)
    assert torch._dynamo.config.recompile_limit == 2 * compiled.SHAPES


def test_missing_compiler_or_capability_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_offloaded_weights_are_not_compiled() -> None:
    with pytest.raises(UsageError, match="offload=optimizer"):
        compiled.require(Settings(compile="yes", offload="parameters"), CPU)


def test_toolchain_is_the_compiler_of_compiled_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert compiled.toolchain(Settings(), CPU) is None
    assert "g++" in str(compiled.toolchain(YES, CPU))
