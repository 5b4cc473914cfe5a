"""GLF-CR: two branches of dense blocks that fuse after each, over images at half the resolution."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from shoestring.recipes.cloud.attention import Both, Pair, WindowAttention
from shoestring.recipes.cloud.filtering import dynamic_filter
from shoestring.recipes.cloud.scale import OPTICAL, RADAR

LEAK = 0.1
"""What of a negative number passes where the kernels of the filters are made."""
KERNEL = 5
"""Side of the filter that each pixel and channel gets."""
STRIDE = 2
"""Pixels on the side of the square that becomes one pixel with four times the bands."""

Batch: TypeAlias = tuple[Tensor, Tensor, Tensor]
"""Cloudy (n, 13, crop, crop), radar (n, 2, crop, crop), clear (n, 13, crop, crop), float32."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """How deep and wide; the defaults are the published ones."""

    blocks: int = 6
    layers: int = 5
    channels: int = 96
    growth: int = 48
    heads: int = 8
    upscaled: int = 256
    drop_path: float = 0.2
    """Of the last layer; it rises from 0 at the first."""


SIZES = {
    "full": Shape(),
    "tiny": Shape(blocks=2, layers=2, channels=8, growth=8, heads=2, upscaled=16),
}


class CloudRemoval(nn.Module):
    """Cloudy (n, 13, crop, crop) and radar (n, 2, crop, crop) -> clear (n, 13, crop, crop)."""

    def __init__(self, shape: Shape, *, crop: int) -> None:
        super().__init__()
        channels, pixels = shape.channels, crop // STRIDE
        layers = shape.blocks * shape.layers
        rates = [shape.drop_path * layer / (layers - 1) for layer in range(layers)]
        self.shrink = nn.PixelUnshuffle(STRIDE)
        self.shallow = Both(nn.Conv2d(bands * STRIDE**2, channels, 5, padding=2) for bands in (OPTICAL, RADAR))
        self.deeper = Both(_convolution(channels, channels) for _ in Pair._fields)
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
        # Convolutions are faster where a pixel's channels lie together, and attention needs no copies there.
        shrunk = Pair(*(self.shrink(image).contiguous(memory_format=torch.channels_last) for image in (cloudy, radar)))
        first = self.shallow(shrunk)
        images = self.deeper(first)
        optical = []
        for block, fuse in zip(self.blocks, self.fusions, strict=True):
            # What the last fusion makes of the radar is read by nobody, and its gate learns nothing; so published.
            images = fuse(block(images))
            optical.append(images.optical)
        gathered = self.gather(torch.cat(optical, dim=1)) + first.optical
        clear: Tensor = self.enlarge(gathered) + cloudy
        return clear


class DenseBlock(nn.Module):
    """A residual dense block (Zhang et al., 2018) on both images, whose every layer ends in attention over both."""

    def __init__(self, shape: Shape, *, pixels: int, drop_paths: list[float]) -> None:
        super().__init__()
        widths = [shape.channels + layer * shape.growth for layer in range(shape.layers + 1)]
        self.layers = nn.ModuleList(
            Both(nn.Sequential(_convolution(width, shape.growth), nn.ReLU()) for _ in Pair._fields)
            for width, _ in pairwise(widths)
        )
        self.attention = nn.ModuleList(
            WindowAttention(shape.growth, shape.heads, pixels=pixels, shift=4 * (layer % 2), drop_path=rate)
            for layer, rate in enumerate(drop_paths)
        )
        self.merge = Both(_convolution(widths[-1], shape.channels) for _ in Pair._fields)

    def forward(self, images: Pair) -> Pair:
        seen = images
        for layer, attend in zip(self.layers, self.attention, strict=True):
            new = attend(layer(seen))
            seen = Pair(*(torch.cat(both, dim=1) for both in zip(seen, new, strict=True)))
        return Pair(*map(torch.add, self.merge(seen), images))


class Fusion(nn.Module):
    """The radar, filtered for each pixel as both images suggest, fills in the optical features and is corrected."""

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
        self.gates = Both(nn.Conv2d(channels, channels, 1) for _ in Pair._fields)

    def forward(self, images: Pair) -> Pair:
        *before, last, _ = self.kernels
        hidden = torch.cat(images, dim=1)
        for module in before:
            hidden = module(hidden)
        # As large as 25 images, kernels are made where they are used.
        kernels: Any = last
        filtered = dynamic_filter(images.radar, hidden, kernels.weight.flatten(1), kernels.bias, LEAK)
        missing = filtered - images.optical
        of_optical, of_radar = self.gates
        optical = images.optical + torch.sigmoid(of_optical(missing)) * missing
        unlike = optical - filtered
        return Pair(optical, images.radar + torch.sigmoid(of_radar(unlike)) * unlike)


class ResidualBlock(nn.Module):
    """Two convolutions beside the identity."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            _convolution(channels, channels), nn.LeakyReLU(LEAK, inplace=True), _convolution(channels, channels)
        )

    def forward(self, features: Tensor) -> Tensor:
        changed: Tensor = features + self.convolutions(features)
        return changed


def _convolution(inputs: int, outputs: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, padding=1)
