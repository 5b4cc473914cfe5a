"""Synthetic tiles: invented satellite images of the `terrain`, with and without `clouds`.

Nothing here was measured. 13 optical bands are mixed from three colors and a relief; radar echoes depend on slopes and
roughness and have speckle, so they carry information about the ground beneath a cloud. The values are the same on every
machine.
"""

from functools import lru_cache
from itertools import product

import numpy as np

from shoestring_recipes.cloud import scale
from shoestring_recipes.cloud.clouds import generate_clouds
from shoestring_recipes.cloud.scale import Image
from shoestring_recipes.cloud.terrain import BLOCK_SIDE, BLOCKS_PER_SIDE, SIDE, SOURCES, load_layers
from shoestring_recipes.cloud.tiles import PlaceWindow, Window

NOTE = (
    "the data are synthetic: bands, radar and clouds were generated from a photograph and a relief of matplotlib's "
    f"sample data ({', '.join(SOURCES)}); metrics on them do not apply to satellite images"
)

CLOUDS_PER_BLOCK = {"train": 4, "validation": 8, "test": 8}
"""Clouds over each block of a part; parts with fewer blocks have more, so that their metrics average over enough."""
HELD_OUT_BLOCKS = {"validation": ((1, 0), (2, 3)), "test": ((0, 2), (3, 1))}
"""Rows and columns of the blocks of a part; all other blocks are for training. Parts share no pixel of the terrain."""

BAND_MIX = np.array(
    [
        # red green blue plants rock
        (0.00, 0.05, 0.25, 0.00, 0.02),  # B01, 443 nm
        (0.00, 0.05, 0.35, 0.00, 0.03),  # B02, 490 nm
        (0.05, 0.35, 0.05, 0.03, 0.05),  # B03, 560 nm
        (0.40, 0.05, 0.00, 0.00, 0.08),  # B04, 665 nm
        (0.30, 0.08, 0.00, 0.10, 0.10),  # B05, 705 nm
        (0.20, 0.05, 0.00, 0.25, 0.12),  # B06, 740 nm
        (0.18, 0.05, 0.00, 0.32, 0.13),  # B07, 783 nm
        (0.18, 0.05, 0.00, 0.34, 0.14),  # B08, 842 nm
        (0.18, 0.05, 0.00, 0.35, 0.15),  # B8A, 865 nm
        (0.05, 0.02, 0.00, 0.12, 0.05),  # B09, 945 nm: water vapour
        (0.00, 0.00, 0.00, 0.00, 0.01),  # B10, 1375 nm: the atmosphere absorbs all light from the ground
        (0.25, 0.00, 0.00, 0.12, 0.22),  # B11, 1610 nm
        (0.25, 0.00, 0.00, 0.05, 0.20),  # B12, 2190 nm
    ],
    dtype=np.float32,
)
"""Weight of each layer in each of the 13 bands, invented to resemble leaves and soil."""
CLOUD_SPECTRUM = np.array([1, 1, 0.98, 0.98, 0.98, 0.97, 0.97, 0.96, 0.95, 0.5, 0.08, 0.6, 0.45], dtype=np.float32)
"""Brightness of a cloud in each band: white, but dark in bands that vapor or ice absorb."""


def load_parts() -> "dict[str, SyntheticTiles]":
    """Return the tiles of `train`, `validation` and `test`."""
    return {part: SyntheticTiles(part) for part in CLOUDS_PER_BLOCK}


class SyntheticTiles:
    """The tiles of some parts, each of their blocks under several clouds; implements `tiles.Tiles`."""

    def __init__(self, *parts: str) -> None:
        self._tiles: list[tuple[tuple[int, int], int]] = []
        for part in parts:
            blocks = HELD_OUT_BLOCKS[part] if part in HELD_OUT_BLOCKS else _training_blocks()
            self._tiles += product(blocks, range(CLOUDS_PER_BLOCK[part]))

    def __len__(self) -> int:
        return len(self._tiles)

    def name(self, index: int) -> str:
        (row, column), number = self._tiles[index]
        return f"block {row} {column} under cloud {number}"

    def cut(self, index: int, place: PlaceWindow) -> tuple[Image, Image, Image]:
        """Cut a window as `Tiles.cut` does."""
        (row, column), number = self._tiles[index]
        window = place(BLOCK_SIDE, BLOCK_SIDE)
        ground = Window(row * BLOCK_SIDE + window.top, column * BLOCK_SIDE + window.left, window.side)
        clear = _reflect(ground.cut(load_layers()))
        clouds = generate_clouds(100 * (row * BLOCKS_PER_SIDE + column) + number, BLOCK_SIDE)
        cover, brightness, illumination = (
            window.cut(layer) for layer in (clouds.cover, clouds.brightness, clouds.illumination)
        )
        cloudy = clear * illumination * (1 - cover) + CLOUD_SPECTRUM[:, None, None] * brightness * cover
        return cloudy.astype(np.float32), ground.cut(_compute_radar()), clear


def _training_blocks() -> list[tuple[int, int]]:
    held_out = {block for blocks in HELD_OUT_BLOCKS.values() for block in blocks}
    return [block for block in product(range(BLOCKS_PER_SIDE), range(BLOCKS_PER_SIDE)) if block not in held_out]


def _reflect(layers: Image) -> Image:
    """Return the reflectance (13, h, w) of terrain layers (6, h, w)."""
    red, green, blue, east, north, height = layers
    plants = 1 / (1 + np.exp(2 * height - 4 * (green - red)))
    sunlight = (1 + 0.25 * (east + north)).clip(0.3, 1.7)
    materials = np.stack([red, green, blue, plants, 1 - plants])
    reflected: Image = (np.einsum("bl,lhw->bhw", BAND_MIX, materials) * sunlight + 0.02).clip(0, 1).astype(np.float32)
    return reflected


@lru_cache(maxsize=1)
def _compute_radar() -> Image:
    """Return the radar image of the whole terrain, (2, 1024, 1024) from 0 to 1."""
    red, green, blue, east, _, height = load_layers()
    light = (red + green + blue) / 3
    rough = np.hypot(*np.gradient(light))
    plants = 1 / (1 + np.exp(2 * height - 4 * (green - red)))
    # Slopes facing the satellite, in the west, reflect more, and so do edges and rough surfaces. VH is the weaker one.
    vv = -13 + 2.5 * east + 40 * rough + 5 * light
    vh = -21 + 1.5 * east + 25 * rough + 4 * plants
    looks = 4
    speckle = np.random.RandomState(0).gamma(looks, 1 / looks, (scale.RADAR, SIDE, SIDE))
    return scale.to_backscatter(np.stack([vv, vh]) + 10 * np.log10(speckle))
