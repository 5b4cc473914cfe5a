"""Attention of both images within windows, where the radar's attention decides how much the optical one's counts."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

WINDOW = 8
"""Pixels on the side of a window."""


class Pair(NamedTuple):
    """Features of the optical image and of the radar's, (n, channels, height, width) each."""

    optical: Tensor
    radar: Tensor


class Both(nn.ModuleList):
    """A module of its own for each image of a pair."""

    def forward(self, images: Pair) -> Pair:
        optical, radar = (module(image) for module, image in zip(self, images, strict=True))
        return Pair(optical, radar)


class WindowAttention(nn.Module):
    """A Swin Transformer block (Liu et al., 2021) for two images at once; `Pair` in, `Pair` out, same shapes.

    Both images share relative positions and have all else of their own; nothing is normalised before the attention, as
    published. What the radar's scores have over the optical ones is mixed over heads by a 1x1 convolution into gates,
    which say how much of it is added to them before their softmax.
    """

    pairs: Tensor
    mask: Tensor | None

    def __init__(self, channels: int, heads: int, *, pixels: int, shift: int, drop_path: float) -> None:
        """`pixels`: side of the features, a multiple of the window; `shift`: how far windows lie off the corner."""
        super().__init__()
        self.heads, self.drop_path = heads, drop_path
        # Windows that are all of the image have nothing to shift over.
        self.shift = shift if pixels > WINDOW else 0
        self.norm = Both(nn.LayerNorm(channels) for _ in Pair._fields)
        self.positions = nn.Parameter(0.02 * torch.randn((2 * WINDOW - 1) ** 2, heads))
        self.register_buffer("pairs", relative_positions(), persistent=False)
        self.register_buffer("mask", neighbours(pixels, self.shift) if self.shift else None, persistent=False)
        self.gate = nn.Conv2d(heads, heads, 1)
        self.project = nn.ModuleList(nn.Linear(channels, 3 * channels) for _ in Pair._fields)
        self.merge = nn.ModuleList(nn.Linear(channels, channels) for _ in Pair._fields)
        self.dense = Both(
            nn.Sequential(nn.Linear(channels, 2 * channels), nn.GELU(), nn.Linear(2 * channels, channels))
            for _ in Pair._fields
        )

    def forward(self, images: Pair) -> Pair:
        pixels = Pair(*(image.permute(0, 2, 3, 1) for image in images))
        pixels = self._add(pixels, self._attend(pixels))
        pixels = self._add(pixels, self.dense(self.norm(pixels)))
        return Pair(*(image.permute(0, 3, 1, 2) for image in pixels))

    def _attend(self, images: Pair) -> Pair:
        """(n, height, width, channels) of both images, attended to within windows."""
        count, height, width, channels = images.optical.shape
        scores, values = [], []
        for image, project in zip(images, self.project, strict=True):
            windows = split(torch.roll(image, (-self.shift, -self.shift), (1, 2)))
            query, key, value = project(windows).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind()
            scores.append(self._bias((query * query.shape[-1] ** -0.5) @ key.transpose(-2, -1)))
            values.append(value)
        optical, radar = scores
        more = radar - optical
        weights = (self._mask(optical + more * torch.sigmoid(self.gate(more))), self._mask(radar))
        attended = []
        for logits, value, merge in zip(weights, values, self.merge, strict=True):
            merged = merge((logits.softmax(dim=-1) @ value).transpose(1, 2).flatten(2))
            image = join(merged, count, height, width, channels)
            attended.append(torch.roll(image, (self.shift, self.shift), (1, 2)))
        return Pair(*attended)

    def _add(self, images: Pair, changes: Pair) -> Pair:
        return Pair(*(image + self._drop(change) for image, change in zip(images, changes, strict=True)))

    def _bias(self, scores: Tensor) -> Tensor:
        """Scores (windows, heads, 64, 64) plus what the distance between two pixels adds."""
        bias = nn.functional.embedding(self.pairs, self.positions)
        return scores + bias.permute(2, 0, 1)

    def _mask(self, scores: Tensor) -> Tensor:
        """Nothing for pixels that only a shift over the border made neighbours."""
        if self.mask is None:
            return scores
        masked: Tensor = scores.unflatten(0, (-1, self.mask.shape[0])) + self.mask[:, None]
        return masked.flatten(0, 1)

    def _drop(self, change: Tensor) -> Tensor:
        """The change, but for some samples not at all (stochastic depth; Huang et al., 2016)."""
        if not self.training or not self.drop_path:
            return change
        kept = change.new_empty(change.shape[0], 1, 1, 1).bernoulli_(1 - self.drop_path)
        return change * (kept / (1 - self.drop_path))


def split(image: Tensor) -> Tensor:
    """(n, height, width, channels) -> (windows, 64, channels), all windows of a sample in a row."""
    count, height, width, channels = image.shape
    windows = image.view(count, height // WINDOW, WINDOW, width // WINDOW, WINDOW, channels)
    return windows.transpose(2, 3).reshape(-1, WINDOW * WINDOW, channels)


def join(windows: Tensor, count: int, height: int, width: int, channels: int) -> Tensor:
    """`split` undone: (n, height, width, channels)."""
    image = windows.view(count, height // WINDOW, width // WINDOW, WINDOW, WINDOW, channels)
    return image.transpose(2, 3).reshape(count, height, width, channels)


def relative_positions() -> Tensor:
    """(64, 64) int64: for two pixels of a window, the number of the way from one to the other, below 225."""
    rows, columns = torch.arange(WINDOW).repeat_interleave(WINDOW), torch.arange(WINDOW).repeat(WINDOW)
    down, right = (steps[:, None] - steps[None, :] + WINDOW - 1 for steps in (rows, columns))
    return down * (2 * WINDOW - 1) + right


def neighbours(pixels: int, shift: int) -> Tensor:
    """(windows, 64, 64): 0 for two pixels of a shifted window that lie together, -inf where the border is between.

    Published is -100, whose exponential is a number so small that processors take many times as long over it.
    """
    # After rolling, the last window of a row has pixels of both ends of the image.
    wrapped = (torch.arange(pixels) >= pixels - shift).long()
    regions = split((wrapped[:, None] * 2 + wrapped[None, :])[None, :, :, None]).squeeze(-1)
    apart = regions[:, :, None] != regions[:, None, :]
    return torch.zeros(apart.shape).masked_fill(apart, float("-inf"))
