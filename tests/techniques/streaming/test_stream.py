"""Streamed blocks train to the same bits as resident ones. The CPU is both host and device here."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from shoestring.base.settings import Settings
from shoestring.techniques import checkpointing
from shoestring.techniques.streaming import placement
from shoestring.techniques.streaming.stream import Stream

CPU = torch.device("cpu")


class Adapted(nn.Module):
    """A frozen linear layer with an adapter."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.base = nn.Linear(width, width).requires_grad_(False)
        self.a, self.b = nn.Linear(width, 2, bias=False), nn.Linear(2, width, bias=False)

    def forward(self, values: Tensor) -> Tensor:
        return self.base(values) + self.b(self.a(values))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width).requires_grad_(False)
        self.inner, self.outer = Adapted(width), nn.Linear(width, width).requires_grad_(False)
        self.dropout, self.scale = nn.Dropout(0.3), nn.Parameter(torch.ones(width))

    def forward(self, values: Tensor) -> Tensor:
        return values + self.outer(functional.gelu(self.inner(self.dropout(self.norm(values))))) * self.scale


class Model(nn.Module):
    def __init__(self, blocks: int = 5, width: int = 6) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.head = nn.Linear(width, 1)

    def forward(self, values: Tensor) -> Tensor:
        for block in self.blocks:
            values = block(values)
        return self.head(values)


def stream_of(model: nn.Module) -> Stream:
    """Return the stream of a model that has not been checkpointed yet."""
    return next(block.forward.stream for block in model.modules() if hasattr(block.forward, "stream"))


def streamed(model: nn.Module, count: int, setting: str = "no") -> Stream:
    placement.move(model, object(), Settings(streamed_blocks=count), CPU)
    stream = stream_of(model)
    checkpointing.apply(model, object(), setting)
    return stream


def square(model: nn.Module, values: Tensor) -> Tensor:
    return model(values).square().mean()


def train(
    model: nn.Module, loss: Callable[[nn.Module, Tensor], Tensor] = square, *, updates: int = 3, **autocast: Any
) -> list[Tensor]:
    """Return the losses, the trained weights and their last gradients after some updates of two microbatches."""
    torch.manual_seed(1)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.1)
    losses = []
    for _ in range(updates):
        optimizer.zero_grad()
        for _ in range(2):
            with torch.autocast("cpu", enabled=bool(autocast), **autocast):
                value = loss(model, torch.randn(3, 6))
            value.backward()
            losses.append(value.detach())
        optimizer.step()
    return [*losses, *trained, *(parameter.grad for parameter in trained if parameter.grad is not None)]


def assert_same(a: list[Tensor], b: list[Tensor]) -> None:
    assert len(a) == len(b) and all(map(torch.equal, a, b))


@pytest.mark.parametrize("setting", ["no", "full", "2"])
@pytest.mark.parametrize("count", [1, 3, 5])
def test_same_bits_as_resident_blocks(count: int, setting: str) -> None:
    plain, model = Model(), Model()
    checkpointing.apply(plain, object(), setting)
    stream = streamed(model, count, setting)
    assert_same(train(model), train(plain))
    assert stream.copies == max(0, count - 2) * 2 * 6 + min(count, 2)


def test_same_bits_in_bf16() -> None:
    plain, model = Model(), Model()
    streamed(model, 5)
    assert_same(train(model, dtype=torch.bfloat16), train(plain, dtype=torch.bfloat16))
