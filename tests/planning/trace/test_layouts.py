"""Images channels last: convolutions and the operators between them keep the layout, as on a GPU."""

from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import Tensor, nn

from shoestring.base.settings import Settings
from shoestring.hardware.targets import find as find_target
from shoestring.planning.trace import layouts
from shoestring.planning.trace.convolution import ConvolutionShape
from shoestring.planning.trace.record import Op, Trace
from shoestring.planning.trace.tracer import Tracer
from shoestring.recipe.finding import find


class Block(nn.Module):
    """Convolutions with norms, activations, a pool and a sum."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2))
        self.second = nn.Sequential(nn.Conv2d(16, 16, 1), norm, nn.SiLU())
        self.third = nn.Conv2d(16, 8, 3, stride=2)

    def forward(self, images: Tensor) -> Tensor:
        values = self.first(images)
        result: Tensor = self.third(values + self.second(values))
        return result


class Recipe:
    """Trains the block; `converted` names what is channels last."""

    effective_batch = 4

    def __init__(self, *converted: str, norm: Callable[[], nn.Module]) -> None:
        self.norm = norm
        self.images = torch.channels_last if "images" in converted else torch.contiguous_format
        self.weights = torch.channels_last if "weights" in converted else torch.contiguous_format

    def model(self) -> nn.Module:
        return Block(self.norm()).to(memory_format=self.weights)

    def batch(self, size: int) -> Tensor:
        return torch.zeros(size, 3, 16, 16).to(memory_format=self.images)

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        loss: Tensor = model(batch).float().square().mean()
        return loss

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.1)


@cache
def trace(*converted: str, group_norm: bool = False) -> Trace:
    norm = (lambda: nn.GroupNorm(4, 16)) if group_norm else (lambda: nn.BatchNorm2d(16))
    with Tracer(find(Recipe(*converted, norm=norm))) as tracer:
        settings = Settings(micro_batch=4, precision="fp16")
        return tracer.trace(settings, accumulate=1, device=find_target("kaggle-t4").device)


def operators(trace: Trace) -> list[Op]:
    return [event for event in trace.events if isinstance(event, Op)]


@pytest.mark.parametrize("converted", [(), ("weights",), ("images", "weights")])
def test_convolutions_are_channels_last_if_images_or_weights_are(converted: tuple[str, ...]) -> None:
    shapes = [ConvolutionShape(*op.shape) for op in operators(trace(*converted)) if "convolution" in op.name]
    assert len(shapes) == 2 * 2 * 3
    assert {shape.channels_last for shape in shapes} == {int(bool(converted))}


def test_layout_changes_neither_operators_nor_their_bytes() -> None:
    first, last = ([(op.name, op.bytes) for op in operators(trace(*names))] for names in ((), ("images", "weights")))
    assert first == last


def test_group_norm_makes_images_channels_first() -> None:
    names = [op.name for op in operators(trace("images", "weights", group_norm=True))]
    before = [names[index - 1] for index, name in enumerate(names) if name == "aten::native_group_norm"]
    assert before == ["aten::clone", "aten::clone"]
    assert "aten::clone" not in [op.name for op in operators(trace("images", "weights"))]


def test_ambiguous_sizes_follow_the_strides() -> None:
    kernel = torch.zeros(8, 4, 1, 1)
    assert not layouts.is_channels_last(kernel)
    assert layouts.is_channels_last(kernel.to(memory_format=torch.channels_last))
    gray = torch.zeros(2, 1, 5, 5)
    assert not layouts.is_channels_last(gray)
    assert not layouts.is_channels_last(torch.zeros(2, 1, 4, 4).expand(2, 3, 4, 4))
    assert not layouts.is_channels_last(torch.zeros(2, 3, 4))
