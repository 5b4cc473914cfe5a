"""A piece of land that is not: the colours of a photograph on the relief of a real place, both from matplotlib.

The photograph is a portrait of Grace Hopper, the relief is that of Jacksboro, Tennessee; what they have of real images
is their texture.
"""

from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image as Pictures

from shoestring.errors import UsageError
from shoestring.recipes.cloud.scale import Image

BLOCK, BLOCKS = 256, 4
"""The land is a square of 4 x 4 blocks of 256 x 256 pixels."""
SIDE = BLOCK * BLOCKS
SOURCES = ("grace_hopper.jpg", "jacksboro_fault_dem.npz")
LAYERS = ("red", "green", "blue", "east", "north", "height")


@lru_cache(maxsize=1)
def layers() -> Image:
    """(6, 1024, 1024): what comes back of red, green and blue light (0 to 1), how steeply it rises eastwards and
    northwards, and how high it lies, the last three in standard deviations.

    Raises UsageError where matplotlib was packaged without its sample data.
    """
    import matplotlib

    folder = Path(matplotlib.get_data_path()) / "sample_data"
    photograph, relief = (folder / name for name in SOURCES)
    try:
        with Pictures.open(photograph) as picture:
            # To the power of about 2.2, pixels of a picture are amounts of light.
            colours = (_enlarged(picture.convert("RGB")) / 255) ** 2.2
        with np.load(relief, allow_pickle=False) as file:
            metres = _enlarged(Pictures.fromarray(file["elevation"].astype(np.float32)))
    except OSError as error:
        raise UsageError(
            f"the sample images cannot be read: {error}",
            hint="this matplotlib came without its sample data; give satellite images instead: --set data=PATH",
        ) from error
    south, east = np.gradient(metres)
    standard = [(layer - layer.mean()) / layer.std() for layer in (east, -south, metres)]
    return np.stack([*np.moveaxis(colours, -1, 0), *standard]).astype(np.float32)


def _enlarged(picture: Pictures.Image) -> Image:
    """All of the picture as a square of the land's size, (1024, 1024) or with colours behind."""
    return np.asarray(picture.resize((SIDE, SIDE), Pictures.Resampling.BICUBIC), dtype=np.float32).clip(min=0)
