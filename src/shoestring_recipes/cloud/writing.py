"""The files of a prediction: a GeoTIFF with the georeference of the cloudy image, and a preview."""

import io
from collections.abc import Sequence

import numpy as np
import tifffile
from numpy.typing import NDArray
from PIL import Image as Pictures

from shoestring_recipes.cloud.geotiff import GeoTag
from shoestring_recipes.cloud.scale import Image

RGB = (3, 2, 1)
"""The indices of B4, B3 and B2 among the 13 bands."""
STRETCH = (2, 98)
"""The percentiles of the preview that become black and white, the same for all colors."""


def encode_geotiff(counts: NDArray[np.generic], tags: Sequence[GeoTag]) -> bytes:
    """Return (bands, height, width) as a deflate-compressed GeoTIFF with the `tags` of its georeference."""
    file = io.BytesIO()
    tifffile.imwrite(
        file,
        counts,
        photometric="minisblack",
        planarconfig="separate",
        compression="deflate",
        metadata=None,
        software="shoestring",
        extratags=[
            (tag.code, tag.kind, tag.count, tag.value.encode() if isinstance(tag.value, str) else tag.value, True)
            for tag in tags
        ],
    )
    return file.getvalue()


def encode_preview(reflectance: Image) -> bytes:
    """Return the colors of (13, height, width) as a PNG."""
    colors = np.moveaxis(reflectance[list(RGB)], 0, -1)
    black, white = np.percentile(colors, STRETCH)
    stretched = (colors - black) / max(white - black, 1e-3)
    file = io.BytesIO()
    Pictures.fromarray(np.rint(stretched.clip(0, 1) * 255).astype(np.uint8)).save(file, "png")
    return file.getvalue()
