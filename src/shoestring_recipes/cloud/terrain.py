"""Synthetic terrain: the colors of a photograph on the relief of a real place, both from matplotlib's sample data.

The photograph is a portrait of Grace Hopper, the relief is that of Jacksboro, Tennessee; they share only their texture
with real satellite images.
"""

from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image as Pictures

from shoestring.base.errors import UsageError
from shoestring_recipes.cloud.scale import Image

BLOCK_SIDE, BLOCKS_PER_SIDE = 256, 4
"""The terrain is a square of 4 x 4 blocks of 256 x 256 pixels."""
SIDE = BLOCK_SIDE * BLOCKS_PER_SIDE
SOURCES = ("grace_hopper.jpg", "jacksboro_fault_dem.npz")
LAYERS = ("red", "green", "blue", "east", "north", "height")


@lru_cache(maxsize=1)
def load_layers() -> Image:
    """Return the `LAYERS`, (6, 1024, 1024).

    The first three are reflected light from 0 to 1, the others the slopes towards the east and the north and the
    height, in standard deviations.

    Raises UsageError if matplotlib was packaged without its sample data.
    """
    import matplotlib

    folder = Path(matplotlib.get_data_path()) / "sample_data"
    photograph, relief = (folder / name for name in SOURCES)
    try:
        with Pictures.open(photograph) as picture:
            # A gamma of about 2.2 converts the values of a picture to amounts of light.
            colors = (_resize(picture.convert("RGB")) / 255) ** 2.2
        with np.load(relief, allow_pickle=False) as file:
            meters = _resize(Pictures.fromarray(file["elevation"].astype(np.float32)))
    except OSError as error:
        raise UsageError(
            f"the sample images of matplotlib cannot be read: {error}",
            hint="this matplotlib came without its sample data; use satellite images instead: --set data=PATH",
        ) from error
    south, east = np.gradient(meters)
    standardized = [(layer - layer.mean()) / layer.std() for layer in (east, -south, meters)]
    return np.stack([*np.moveaxis(colors, -1, 0), *standardized]).astype(np.float32)


def _resize(picture: Pictures.Image) -> Image:
    """Return the whole picture resized to the terrain, (1024, 1024) or (1024, 1024, colors)."""
    return np.asarray(picture.resize((SIDE, SIDE), Pictures.Resampling.BICUBIC), dtype=np.float32).clip(min=0)
