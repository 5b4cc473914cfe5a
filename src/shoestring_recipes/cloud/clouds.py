"""Synthetic clouds: fractal noise of varying thickness, and the shadows of the thick clouds."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from shoestring_recipes.cloud.scale import Image

_MAX_SHADOW_OFFSET = 48
"""Exclusive upper bound in pixels of the distance between a shadow and its cloud, in each direction."""


@dataclass(frozen=True, kw_only=True)
class Clouds:
    """Clouds over a tile, each field (height, width)."""

    cover: Image
    """Share of the light that comes from a cloud."""
    brightness: Image
    illumination: Image
    """Share of the light that the shadows let through."""


# All clouds of the synthetic tiles, 63 MB; generating them again takes as long as a step of a small network.
@lru_cache(maxsize=80)
def generate_clouds(seed: int, side: int) -> Clouds:
    """Return clouds, thick over a fifth to a half of the tile and thin around; equal seeds give equal clouds."""
    # The stream of RandomState is frozen; that of newer generators may change between NumPy versions.
    random = np.random.RandomState(seed)
    down, right = random.randint(8, _MAX_SHADOW_OFFSET, size=2)
    clouds = _threshold(_fractal_noise(random, side + _MAX_SHADOW_OFFSET), share=random.uniform(0.2, 0.5), soft=0.35)
    thick, shadow = clouds[:side, :side], clouds[down : down + side, right : right + side]
    thin = random.uniform(0.2, 0.5) * _threshold(_fractal_noise(random, side), share=0.7, soft=2.5)
    return Clouds(
        cover=1 - (1 - 0.97 * thick) * (1 - thin),
        brightness=(0.6 + 0.06 * _fractal_noise(random, side)).clip(0.4, 0.8),
        illumination=1 - 0.55 * shadow,
    )


def _threshold(noise: Image, *, share: float, soft: float) -> Image:
    """Return 1 for the highest `share` of the noise and 0 elsewhere, with a border `soft` standard deviations wide."""
    border = np.quantile(noise, 1 - share)
    step = ((noise - border) / soft + 0.5).clip(0, 1)
    smooth: Image = (step * step * (3 - 2 * step)).astype(np.float32)
    return smooth


def _fractal_noise(random: np.random.RandomState, side: int) -> Image:
    """Return (side, side) noise with standard deviation 1: a sum of ever finer random grids, each half as strong."""
    total = np.zeros((side, side))
    for octave in range(2, 7):
        knots = 2**octave
        positions = np.arange(side) * (knots - 1) / side
        low, fraction = positions.astype(int), positions % 1
        fraction = fraction * fraction * (3 - 2 * fraction)
        grid = random.standard_normal((knots, knots))
        rows = grid[low] * (1 - fraction[:, None]) + grid[low + 1] * fraction[:, None]
        total += (rows[:, low] * (1 - fraction) + rows[:, low + 1] * fraction) * 0.5**octave
    noise: Image = ((total - total.mean()) / total.std()).astype(np.float32)
    return noise
