"""Tiles without clear images, and their predictions, for the tests."""

from pathlib import Path
from typing import Any

import torch

from shoestring.base.errors import DataError
from shoestring_recipes.cloud import Cloud
from tests.recipes.cloud.images import optical_image, radar_image, write_image

TINY = {"size": "tiny", "crop": 16}


def write_tile(root: Path, patch: int, *, side: int = 40, roi: int = 102, optical: Any = None, **options: Any) -> None:
    """Write the radar and the cloudy image of a tile in SEN12MS-CR's layout, without a clear one."""
    for kind, image in (("s1", radar_image(patch, side)), ("s2_cloudy", optical)):
        path = root / f"ROIs2017_winter_{kind}" / f"{kind}_{roi}" / f"ROIs2017_winter_{kind}_{roi}_p{patch}.tif"
        write_image(path, optical_image(patch, side=side) if image is None else image, **options)


def predict(recipe: Cloud, inputs: Any, size: int = 2) -> list[Any]:
    """Return the row of each input, or its error."""
    torch.manual_seed(0)
    model = recipe.model().eval()
    rows: list[Any] = []
    tiles: list[Any] = []
    for source in inputs:
        try:
            tiles.append(source.load() if source.error is None else None)
            rows.append(source.error)
        except DataError as error:
            tiles.append(None)
            rows.append(str(error))
    usable = [index for index, tile in enumerate(tiles) if tile is not None]
    for start in range(0, len(usable), size):
        indices = usable[start : start + size]
        with torch.no_grad():
            predictions = recipe.predict(model, recipe.collate([tiles[index] for index in indices]))
        for index, row in zip(indices, predictions, strict=True):
            rows[index] = row
    return rows
