"""The prediction of whole tiles: a clear image, its files and a summary."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from shoestring_recipes.cloud import scale
from shoestring_recipes.cloud.scale import Image
from shoestring_recipes.cloud.windows import remove_clouds


@dataclass(frozen=True, kw_only=True)
class Tile:
    """A whole tile in host memory."""

    name: str
    """The name of its files, without suffix."""
    cloudy: NDArray[np.generic]
    """(13, height, width) counts, as in the file."""
    radar: Image
    """(2, height, width) from 0 to 1."""
    tags: tuple[Any, ...] = ()
    """The georeference of the cloudy image."""
    no_data: float | None = None
    """The count that means that nothing was measured."""


def predict_tile(model: nn.Module, tile: Tile, crop: int) -> dict[str, Any]:
    """Return a summary of the clear tile, and functions that encode its files.

    Pixels that have no data in any band of the cloudy image have none in the GeoTIFF either.
    """
    from shoestring_recipes.cloud.writing import encode_geotiff, encode_preview

    cloudy = scale.to_reflectance(tile.cloudy)
    clear = remove_clouds(model, cloudy, tile.radar, crop)
    without_data = (tile.cloudy == tile.no_data).all(axis=0)
    counts = np.where(without_data, tile.cloudy, scale.to_counts(clear, tile.cloudy.dtype))
    return {
        "prediction": summarize(torch.from_numpy(clear), torch.from_numpy(cloudy)),
        "files": {
            f"{tile.name}.tif": partial(encode_geotiff, counts, tile.tags),
            f"{tile.name}.png": partial(encode_preview, clear),
        },
    }


def summarize(clear: Tensor, cloudy: Tensor) -> dict[str, Any]:
    """Return size, mean reflectance and the mean absolute change of reflectance of a clear image (13, h, w)."""
    clear, cloudy = clear.double().clamp(0, 1), cloudy.double()
    bands, height, width = clear.shape
    return {
        "width": width,
        "height": height,
        "bands": bands,
        "mean_reflectance": float(clear.mean()),
        "mean_change": float((clear - cloudy).abs().mean()),
    }
