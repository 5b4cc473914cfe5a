"""Small images in files as the satellites' are."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

tifffile = pytest.importorskip("tifffile")

SIDE = 32


def optical(seed: int = 0, bands: int = 13, side: int = SIDE) -> np.ndarray:
    """(bands, side, side) counts."""
    return np.random.RandomState(seed).randint(0, 12_000, (bands, side, side)).astype(np.uint16)


def radar(seed: int = 0, side: int = SIDE) -> np.ndarray:
    """(2, side, side) decibels."""
    return np.random.RandomState(seed).uniform(-40, 5, (2, side, side)).astype(np.float32)


def write(path: Path, image: np.ndarray, **how: Any) -> Path:
    """Bands behind pixels, as GLF-CR's own files have them, or else `planarconfig="separate"`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    planar = how.pop("planarconfig", "contig")
    pixels = image if planar == "separate" else np.moveaxis(image, 0, -1)
    tifffile.imwrite(path, pixels, photometric="minisblack", planarconfig=planar, **how)
    return path


def triplet(root: Path, name: str, seed: int = 0, *, side: int = SIDE) -> str:
    """The three images of a tile, as the published data.csv names them; returns its row without the split."""
    write(root / "s1" / name, radar(seed, side))
    write(root / "s2_cloudfree" / name, optical(seed, side=side))
    write(root / "s2_cloudy" / name, optical(seed + 100, side=side))
    return f"s1,s2_cloudfree,s2_cloudy,{name}"
