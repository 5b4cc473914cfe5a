"""Synthetic tiles: what two satellites might see of `land`, with and without the clouds of a `sky`.

Nothing here was measured. 13 bands are mixed from three colours and a relief, echoes follow slopes and roughness and
have speckle, so that the radar knows something of what a cloud hides. Same numbers on every machine.
"""

from functools import lru_cache
from itertools import product

import numpy as np

from shoestring.recipes.cloud import scale
from shoestring.recipes.cloud.land import BLOCK, BLOCKS, SIDE, SOURCES, layers
from shoestring.recipes.cloud.scale import Image
from shoestring.recipes.cloud.sky import sky
from shoestring.recipes.cloud.tiles import Place, Window

NOTE = (
    "the data are synthetic: bands, radar and clouds were made from a photograph and a relief that come with "
    f"matplotlib ({', '.join(SOURCES)}); what is reached on them says nothing of satellite images"
)

SKIES = {"train": 4, "validation": 8, "test": 8}
"""Each block of a part is seen under so many: the fewer the blocks the more, or the metrics would hang on a few."""
HELD_OUT = {"validation": ((1, 0), (2, 3)), "test": ((0, 2), (3, 1))}
"""Blocks by row and column; the others are trained on. No two parts share a pixel of land."""

MIX = np.array(
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
        (0.00, 0.00, 0.00, 0.00, 0.01),  # B10, 1375 nm: air lets nothing of the ground through
        (0.25, 0.00, 0.00, 0.12, 0.22),  # B11, 1610 nm
        (0.25, 0.00, 0.00, 0.05, 0.20),  # B12, 2190 nm
    ],
    dtype=np.float32,
)
"""How much of each layer is in each of the 13 bands. Invented, after how leaves and soil look."""
CLOUD = np.array([1, 1, 0.98, 0.98, 0.98, 0.97, 0.97, 0.96, 0.95, 0.5, 0.08, 0.6, 0.45], dtype=np.float32)
"""A cloud's brightness in each band: white, dark where vapour or ice absorb."""


def parts() -> "dict[str, Synthetic]":
    return {part: Synthetic(part) for part in SKIES}


class Synthetic:
    """The tiles of one part, as `tiles.Tiles`: each of its blocks under each of its skies."""

    def __init__(self, part: str) -> None:
        blocks = HELD_OUT[part] if part in HELD_OUT else _others()
        self._tiles = list(product(blocks, range(SKIES[part])))

    def __len__(self) -> int:
        return len(self._tiles)

    def cut(self, index: int, place: Place) -> tuple[Image, Image, Image]:
        """As `Tiles.cut`."""
        (row, column), number = self._tiles[index]
        window = place(BLOCK, BLOCK)
        ground = Window(row * BLOCK + window.top, column * BLOCK + window.left, window.side)
        clear = _ground(ground.cut(layers()))
        above = sky(100 * (row * BLOCKS + column) + number, BLOCK)
        cover, brightness, lit = (window.cut(layer) for layer in (above.cover, above.brightness, above.lit))
        cloudy = clear * lit * (1 - cover) + CLOUD[:, None, None] * brightness * cover
        return cloudy.astype(np.float32), ground.cut(_radar()), clear


def _others() -> list[tuple[int, int]]:
    held = {block for blocks in HELD_OUT.values() for block in blocks}
    return [block for block in product(range(BLOCKS), range(BLOCKS)) if block not in held]


def _ground(land: Image) -> Image:
    """What the optical satellite sees of some land (6, h, w): reflectance (13, h, w)."""
    red, green, blue, east, north, height = land
    plants = 1 / (1 + np.exp(2 * height - 4 * (green - red)))
    sunlight = (1 + 0.25 * (east + north)).clip(0.3, 1.7)
    seen = np.stack([red, green, blue, plants, 1 - plants])
    reflected: Image = (np.einsum("bl,lhw->bhw", MIX, seen) * sunlight + 0.02).clip(0, 1).astype(np.float32)
    return reflected


@lru_cache(maxsize=1)
def _radar() -> Image:
    """What the radar sees of all the land: (2, 1024, 1024) from 0 to 1."""
    red, green, blue, east, _, height = layers()
    light = (red + green + blue) / 3
    rough = np.hypot(*np.gradient(light))
    plants = 1 / (1 + np.exp(2 * height - 4 * (green - red)))
    # Slopes that face the satellite, in the west, send more back; so do edges and what is rough. VH is the weaker.
    vv = -13 + 2.5 * east + 40 * rough + 5 * light
    vh = -21 + 1.5 * east + 25 * rough + 4 * plants
    looks = 4
    speckle = np.random.RandomState(0).gamma(looks, 1 / looks, (scale.RADAR, SIDE, SIDE))
    return scale.backscatter(np.stack([vv, vh]) + 10 * np.log10(speckle))
