"""A whole tile from the model's fixed crop: overlapping windows, blended without seams.

The authors of GLF-CR evaluate the center of each tile alone. Near the border of a window the model knows less of the
surroundings, so windows overlap by at least a quarter and the weight of a pixel falls towards the border of its window.
"""

from itertools import product
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from shoestring_recipes.cloud.scale import Image

PIXELS_AT_ONCE = 128 * 128
"""The pixels of the windows that the model processes at once: one window of the published crop, or several smaller."""


class Span(NamedTuple):
    """The rows or the columns of a window, and the weight of each."""

    start: int
    weights: Tensor


def place_spans(side: int, crop: int) -> list[Span]:
    """Return equally spaced spans of `crop` pixels that cover `side` pixels; the weights of each pixel sum to 1."""
    count = 1 + max(0, -(-4 * (side - crop) // (3 * crop)))
    starts = np.linspace(0, max(0, side - crop), count).round().astype(int).tolist()
    window = torch.sin(torch.pi * (torch.arange(crop, dtype=torch.float64) + 0.5) / crop) ** 2
    total = torch.zeros(max(side, crop), dtype=torch.float64)
    for start in starts:
        total[start : start + crop] += window
    return [Span(start, (window / total[start : start + crop]).float()) for start in starts]


def windows_at_once(crop: int) -> int:
    """Return the number of windows that the model processes at once."""
    return max(1, PIXELS_AT_ONCE // crop**2)


def remove_clouds(model: nn.Module, cloudy: Image, radar: Image, crop: int) -> Image:
    """Return the clear image of a whole tile of any size, (13, height, width) for `cloudy` of that shape.

    Only a few windows at a time are on the model's device. A tile that is smaller than the crop is mirrored at its
    border.
    """
    device = next(model.parameters()).device
    height, width = cloudy.shape[1:]
    padding = ((0, 0), (0, max(0, crop - height)), (0, max(0, crop - width)))
    images = [torch.from_numpy(np.pad(image, padding, mode="symmetric")) for image in (cloudy, radar)]
    clear = torch.zeros_like(images[0])
    windows = [
        ((..., slice(top, top + crop), slice(left, left + crop)), row_weights[:, None] * column_weights)
        for (top, row_weights), (left, column_weights) in product(place_spans(height, crop), place_spans(width, crop))
    ]
    size = windows_at_once(crop)
    for start in range(0, len(windows), size):
        chunk = windows[start : start + size]
        batch = (torch.stack([image[window] for window, _ in chunk]).to(device) for image in images)
        for (window, weights), restored in zip(chunk, model(*batch).float().cpu(), strict=True):
            clear[window] += restored * weights
    whole: Image = clear[:, :height, :width].numpy()
    return whole
