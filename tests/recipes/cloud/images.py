"""Small image files in the format of the satellites' images."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

tifffile = pytest.importorskip("tifffile")

SIDE = 32


def optical_image(seed: int = 0, bands: int = 13, side: int = SIDE) -> np.ndarray:
    """Return (bands, side, side) counts."""
    return np.random.RandomState(seed).randint(0, 12_000, (bands, side, side)).astype(np.uint16)


def radar_image(seed: int = 0, side: int = SIDE) -> np.ndarray:
    """Return (2, side, side) decibels."""
    return np.random.RandomState(seed).uniform(-40, 5, (2, side, side)).astype(np.float32)


def write_image(path: Path, image: np.ndarray, **options: Any) -> Path:
    """Write bands last, as in GLF-CR's files, or first with `planarconfig="separate"`; return the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    planar_config = options.pop("planarconfig", "contig")
    pixels = image if planar_config == "separate" else np.moveaxis(image, 0, -1)
    tifffile.imwrite(path, pixels, photometric="minisblack", planarconfig=planar_config, **options)
    return path


def write_triplet(root: Path, name: str, seed: int = 0, *, side: int = SIDE) -> str:
    """Write the three images of a tile in the published folders; return its row of data.csv without the split."""
    write_image(root / "s1" / name, radar_image(seed, side))
    write_image(root / "s2_cloudfree" / name, optical_image(seed, side=side))
    write_image(root / "s2_cloudy" / name, optical_image(seed + 100, side=side))
    return f"s1,s2_cloudfree,s2_cloudy,{name}"


GEO_TAGS = {
    33550: (12, (10.0, 10.0, 0.0)),
    33922: (12, (0.0, 0.0, 0.0, 399960.0, 5900040.0, 0.0)),
    34735: (3, (1, 1, 0, 3, 1024, 0, 1, 1, 1025, 0, 1, 1, 3072, 0, 1, 32633)),
    34736: (12, (6378137.0, 298.257223563)),
    34737: (2, "WGS 84 / UTM zone 33N|WGS 84|"),
    42112: (2, '<GDALMetadata>\n  <Item name="DESCRIPTION" sample="0" role="description">B1</Item>\n</GDALMetadata>\n'),
    42113: (2, "0"),
}
"""The georeference of a tile of Sentinel-2 near Berlin, by number, type and value."""


def geo_tag_options(tags: dict[int, tuple[int, Any]] = GEO_TAGS) -> list[tuple[int, int, int, Any, bool]]:
    """Return tifffile's `extratags` for the tags."""
    return [(code, kind, len(value), value, True) for code, (kind, value) in tags.items()]


def read_geo_tags(path: Path) -> dict[int, tuple[int, Any]]:
    """Return the tags of `GEO_TAGS` as another library's file reader sees them."""
    with tifffile.TiffFile(path) as file:
        tags = file.pages[0].tags
        return {code: (int(tags[code].dtype), tags[code].value) for code in GEO_TAGS if code in tags}
