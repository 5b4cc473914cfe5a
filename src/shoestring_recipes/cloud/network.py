"""GLF-CR: two branches of dense blocks, fused after each block, at half the resolution of the images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from shoestring_recipes.cloud.attention import Pair, PairModule, WindowAttention
from shoestring_recipes.cloud.filtering import dynamic_filter
from shoestring_recipes.cloud.scale import OPTICAL, RADAR

LEAK = 0.1
"""Negative slope of the LeakyReLU in the computation of the filter kernels."""
KERNEL = 5
"""Side of the filter of each pixel and channel."""
STRIDE = 2
"""Side in pixels of the square that becomes one pixel with four times the bands."""

Batch: TypeAlias = tuple[Tensor, Tensor, Tensor]
"""Cloudy (n, 13, crop, crop), radar (n, 2, crop, crop), clear (n, 13, crop, crop), float32."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Depth and widths of the network; the defaults are the published values."""

    blocks: int = 6
    layers: int = 5
    channels: int = 96
    growth: int = 48
    heads: int = 8
    upscaled: int = 256
    drop_path: float = 0.2
    """Drop rate of the last layer; it increases linearly from 0 at the first."""


SIZES = {
    "full": Shape(),
    "tiny": Shape(blocks=2, layers=2, channels=8, growth=8, heads=2, upscaled=16),
}


class CloudRemoval(nn.Module):
    """GLF-CR: maps cloudy (n, 13, crop, crop) and radar (n, 2, crop, crop) to clear (n, 13, crop, crop)."""

    def __init__(self, shape: Shape, *, crop: int) -> None:
        super().__init__()
        channels, pixels = shape.channels, crop // STRIDE
        layers = shape.blocks * shape.layers
        rates = [shape.drop_path * layer / (layers - 1) for layer in range(layers)]
        self.shrink = nn.PixelUnshuffle(STRIDE)
        self.shallow = PairModule(nn.Conv2d(bands * STRIDE**2, channels, 5, padding=2) for bands in (OPTICAL, RADAR))
        self.deeper = PairModule(_convolution(channels, channels) for _ in Pair._fields)
        self.blocks = nn.ModuleList(
            DenseBlock(shape, pixels=pixels, drop_paths=rates[number * shape.layers : (number + 1) * shape.layers])
            for number in range(shape.blocks)
        )
        self.fusions = nn.ModuleList(Fusion(channels) for _ in range(shape.blocks))
        self.gather = nn.Sequential(nn.Conv2d(shape.blocks * channels, channels, 1), _convolution(channels, channels))
        self.enlarge = nn.Sequential(
            _convolution(channels, shape.upscaled),
            nn.PixelShuffle(STRIDE),
            _convolution(shape.upscaled // STRIDE**2, OPTICAL),
        )

    def forward(self, cloudy: Tensor, radar: Tensor) -> Tensor:
        # Convolutions are faster in channels-last layout, and attention needs no copies in it.
        shrunk = Pair(*(self.shrink(image).contiguous(memory_format=torch.channels_last) for image in (cloudy, radar)))
        first = self.shallow(shrunk)
        images = self.deeper(first)
        optical = []
        for block, fuse in zip(self.blocks, self.fusions, strict=True):
            # As published, the radar output of the last fusion is unused, so its gate gets no gradient.
            images = fuse(block(images))
            optical.append(images.optical)
        residual = self.gather(torch.cat(optical, dim=1)) + first.optical
        clear: Tensor = self.enlarge(residual) + cloudy
        return clear


class DenseBlock(nn.Module):
    """A residual dense block (Zhang et al., 2018) on both images, with attention over both after every layer."""

    def __init__(self, shape: Shape, *, pixels: int, drop_paths: list[float]) -> None:
        super().__init__()
        widths = [shape.channels + layer * shape.growth for layer in range(shape.layers + 1)]
        self.layers = nn.ModuleList(
            PairModule(nn.Sequential(_convolution(width, shape.growth), nn.ReLU()) for _ in Pair._fields)
            for width, _ in pairwise(widths)
        )
        self.attention = nn.ModuleList(
            WindowAttention(shape.growth, shape.heads, pixels=pixels, shift=4 * (layer % 2), drop_path=rate)
            for layer, rate in enumerate(drop_paths)
        )
        self.merge = PairModule(_convolution(widths[-1], shape.channels) for _ in Pair._fields)

    def forward(self, images: Pair) -> Pair:
        features = images
        for layer, attend in zip(self.layers, self.attention, strict=True):
            new = attend(layer(features))
            features = Pair(*(torch.cat(maps, dim=1) for maps in zip(features, new, strict=True)))
        return Pair(*map(torch.add, self.merge(features), images))


class Fusion(nn.Module):
    """Fusion of both images: radar features, filtered by kernels computed from both, complete the optical features.

    The radar features are then corrected towards the optical ones.
    """

    filter: Callable[..., Tensor] = staticmethod(dynamic_filter)

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.kernels = nn.Sequential(
            _convolution(2 * channels, channels),
            nn.LeakyReLU(LEAK, inplace=True),
            ResidualBlock(channels),
            ResidualBlock(channels),
            nn.Conv2d(channels, channels * KERNEL**2, 1),
            nn.LeakyReLU(LEAK, inplace=True),
        )
        self.gates = PairModule(nn.Conv2d(channels, channels, 1) for _ in Pair._fields)

    def forward(self, images: Pair) -> Pair:
        *layers, last, _ = self.kernels
        hidden = torch.cat(images, dim=1)
        for module in layers:
            hidden = module(hidden)
        # The kernels are as large as 25 images, so `dynamic_filter` computes them when it uses them.
        kernels: Any = last
        filtered = self.filter(images.radar, hidden, kernels.weight.flatten(1), kernels.bias, LEAK)
        missing = filtered - images.optical
        optical_gate, radar_gate = self.gates
        optical = images.optical + torch.sigmoid(optical_gate(missing)) * missing
        correction = optical - filtered
        return Pair(optical, images.radar + torch.sigmoid(radar_gate(correction)) * correction)


class ResidualBlock(nn.Module):
    """Two convolutions with a skip connection."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            _convolution(channels, channels), nn.LeakyReLU(LEAK, inplace=True), _convolution(channels, channels)
        )

    def forward(self, features: Tensor) -> Tensor:
        output: Tensor = features + self.convolutions(features)
        return output


def _convolution(inputs: int, outputs: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, padding=1)
