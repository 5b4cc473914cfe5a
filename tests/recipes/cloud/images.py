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
