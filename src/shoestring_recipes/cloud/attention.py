"""Attention over windows of both images, in which a gate adds the radar's attention scores to the optical ones."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

WINDOW = 8
"""Side of a window in pixels."""


class Pair(NamedTuple):
    """Features of the optical and of the radar image, each (n, channels, height, width)."""

    optical: Tensor
    radar: Tensor


class PairModule(nn.ModuleList):
    """Two modules, one for each image of a pair."""

    def forward(self, images: Pair) -> Pair:
        optical, radar = (module(image) for module, image in zip(self, images, strict=True))
        return Pair(optical, radar)


class WindowAttention(nn.Module):
    """A Swin Transformer block (Liu et al., 2021) for two images at once; maps a `Pair` to one of the same shapes.

    The two images share relative positions and have separate parameters otherwise; as published, nothing is normalized
    before the attention. The difference between radar and optical scores is mixed over heads by a 1x1 convolution into
    gates, which weigh that difference before it is added to the optical scores, ahead of their softmax.
    """

    relative_index: Tensor
    mask: Tensor | None

    def __init__(self, channels: int, heads: int, *, pixels: int, shift: int, drop_path: float) -> None:
        """`pixels`: side of the features, a multiple of `WINDOW`; `shift`: offset of the windows from the corner."""
        super().__init__()
        self.heads, self.drop_path = heads, drop_path
        # A window that covers the whole image has no neighbour to shift towards.
        self.shift = shift if pixels > WINDOW else 0
        self.norm = PairModule(nn.LayerNorm(channels) for _ in Pair._fields)
        self.positions = nn.Parameter(0.02 * torch.randn((2 * WINDOW - 1) ** 2, heads))
        self.register_buffer("relative_index", relative_position_index(), persistent=False)
        self.register_buffer("mask", shifted_window_mask(pixels, self.shift) if self.shift else None, persistent=False)
        self.gate = nn.Conv2d(heads, heads, 1)
        self.project = nn.ModuleList(nn.Linear(channels, 3 * channels) for _ in Pair._fields)
        self.merge = nn.ModuleList(nn.Linear(channels, channels) for _ in Pair._fields)
        self.dense = PairModule(
            nn.Sequential(nn.Linear(channels, 2 * channels), nn.GELU(), nn.Linear(2 * channels, channels))
            for _ in Pair._fields
        )

    def forward(self, images: Pair) -> Pair:
        pixels = Pair(*(image.permute(0, 2, 3, 1) for image in images))
        pixels = self._add(pixels, self._attend(pixels))
        pixels = self._add(pixels, self.dense(self.norm(pixels)))
        return Pair(*(image.permute(0, 3, 1, 2) for image in pixels))

    def _attend(self, images: Pair) -> Pair:
        """Return the result of attention within windows, (n, height, width, channels) for each image."""
        count, height, width, channels = images.optical.shape
        scores, values = [], []
        for image, project in zip(images, self.project, strict=True):
            windows = split_windows(torch.roll(image, (-self.shift, -self.shift), (1, 2)))
            query, key, value = project(windows).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind()
            scores.append(self._add_bias((query * query.shape[-1] ** -0.5) @ key.transpose(-2, -1)))
            values.append(value)
        optical, radar = scores
        difference = radar - optical
        masked_scores = (
            self._add_mask(optical + difference * torch.sigmoid(self.gate(difference))),
            self._add_mask(radar),
        )
        attended = []
        for logits, value, merge in zip(masked_scores, values, self.merge, strict=True):
            merged = merge((logits.softmax(dim=-1) @ value).transpose(1, 2).flatten(2))
            image = join_windows(merged, count, height, width, channels)
            attended.append(torch.roll(image, (self.shift, self.shift), (1, 2)))
        return Pair(*attended)

    def _add(self, images: Pair, changes: Pair) -> Pair:
        return Pair(*(image + self._drop(change) for image, change in zip(images, changes, strict=True)))

    def _add_bias(self, scores: Tensor) -> Tensor:
        """Add the bias of each relative position to the scores (windows, heads, 64, 64)."""
        bias = nn.functional.embedding(self.relative_index, self.positions)
        return scores + bias.permute(2, 0, 1)

    def _add_mask(self, scores: Tensor) -> Tensor:
        """Mask pairs of pixels that are neighbours only because the shift wrapped around the border."""
        if self.mask is None:
            return scores
        masked: Tensor = scores.unflatten(0, (-1, self.mask.shape[0])) + self.mask[:, None]
        return masked.flatten(0, 1)

    def _drop(self, change: Tensor) -> Tensor:
        """Zero the change of random samples while training (stochastic depth; Huang et al., 2016)."""
        if not self.training or not self.drop_path:
            return change
        survivors = change.new_empty(change.shape[0], 1, 1, 1).bernoulli_(1 - self.drop_path)
        return change * (survivors / (1 - self.drop_path))


def split_windows(image: Tensor) -> Tensor:
    """Split (n, height, width, channels) into windows (n * windows, 64, channels), those of a sample adjacent."""
    count, height, width, channels = image.shape
    windows = image.view(count, height // WINDOW, WINDOW, width // WINDOW, WINDOW, channels)
    return windows.transpose(2, 3).reshape(-1, WINDOW * WINDOW, channels)


def join_windows(windows: Tensor, count: int, height: int, width: int, channels: int) -> Tensor:
    """Join windows into (n, height, width, channels), the inverse of `split_windows`."""
    image = windows.view(count, height // WINDOW, width // WINDOW, WINDOW, WINDOW, channels)
    return image.transpose(2, 3).reshape(count, height, width, channels)


def relative_position_index() -> Tensor:
    """Return (64, 64) int64: for each pair of pixels in a window, the index of their relative position, below 225."""
    rows, columns = torch.arange(WINDOW).repeat_interleave(WINDOW), torch.arange(WINDOW).repeat(WINDOW)
    down, right = (steps[:, None] - steps[None, :] + WINDOW - 1 for steps in (rows, columns))
    return down * (2 * WINDOW - 1) + right


def shifted_window_mask(pixels: int, shift: int) -> Tensor:
    """Return (windows, 64, 64): 0 for two pixels of the same image region, -inf if the border separates them.

    The published value is -100, whose exponential is a subnormal number that processors handle many times slower.
    """
    # After rolling, the last window of a row has pixels of both ends of the image.
    wrapped = (torch.arange(pixels) >= pixels - shift).long()
    regions = split_windows((wrapped[:, None] * 2 + wrapped[None, :])[None, :, :, None]).squeeze(-1)
    separated = regions[:, :, None] != regions[:, None, :]
    return torch.zeros(separated.shape).masked_fill(separated, float("-inf"))
