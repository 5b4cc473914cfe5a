"""Clouds: fractal noise that is thick in one place and thin in another, and the shadows that the thick ones throw."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from shoestring.recipes.cloud.scale import Image

_FARTHEST = 48
"""Pixels that a shadow may lie from its cloud, less one, in each direction."""


@dataclass(frozen=True, kw_only=True)
class Sky:
    """(height, width) each: how much of the light is a cloud's, how bright the cloud is, and what its shadow leaves."""

    cover: Image
    brightness: Image
    lit: Image


# All of the synthetic tiles' skies, 63 MB; to draw one anew takes as long as a small network's step.
@lru_cache(maxsize=80)
def sky(seed: int, side: int) -> Sky:
    """One of the skies that there are, the same for the same `seed`: a fifth to a half thick cloud, thin beside it."""
    # The stream of RandomState never changes; that of newer generators may from one NumPy to the next.
    draw = np.random.RandomState(seed)
    down, right = draw.randint(8, _FARTHEST, size=2)
    clouds = _beyond(_fractal(draw, side + _FARTHEST), share=draw.uniform(0.2, 0.5), soft=0.35)
    thick, shadow = clouds[:side, :side], clouds[down : down + side, right : right + side]
    thin = draw.uniform(0.2, 0.5) * _beyond(_fractal(draw, side), share=0.7, soft=2.5)
    return Sky(
        cover=1 - (1 - 0.97 * thick) * (1 - thin),
        brightness=(0.6 + 0.06 * _fractal(draw, side)).clip(0.4, 0.8),
        lit=1 - 0.55 * shadow,
    )


def _beyond(noise: Image, *, share: float, soft: float) -> Image:
    """0 to 1: where the noise is among its highest `share`, with a border that is `soft` standard deviations wide."""
    border = np.quantile(noise, 1 - share)
    step = ((noise - border) / soft + 0.5).clip(0, 1)
    smooth: Image = (step * step * (3 - 2 * step)).astype(np.float32)
    return smooth


def _fractal(draw: np.random.RandomState, side: int) -> Image:
    """(side, side) noise of standard deviation 1: ever finer grids of random numbers, each half as strong."""
    total = np.zeros((side, side))
    for octave in range(2, 7):
        knots = 2**octave
        at = np.arange(side) * (knots - 1) / side
        low, between = at.astype(int), at % 1
        between = between * between * (3 - 2 * between)
        grid = draw.standard_normal((knots, knots))
        rows = grid[low] * (1 - between[:, None]) + grid[low + 1] * between[:, None]
        total += (rows[:, low] * (1 - between) + rows[:, low + 1] * between) * 0.5**octave
    noise: Image = ((total - total.mean()) / total.std()).astype(np.float32)
    return noise
