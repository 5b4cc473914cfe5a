"""Scaling of the values in satellite images to numbers between 0 and 1.

The bounds are those of GLF-CR and of the dataset's own loader (Xu et al., 2022; Ebel et al., 2020).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

OPTICAL, RADAR = 13, 2
"""Number of bands of Sentinel-2, and of Sentinel-1 (VV and VH)."""
FULL_REFLECTANCE = 10_000
"""The count of Sentinel-2 for a reflectance of 1."""
MIN_DB = (-25.0, -32.5)
"""Lower bounds of VV and VH, below which the signal is noise. The upper bound is 0 dB."""

Image = NDArray[np.float32]


def to_reflectance(counts: NDArray[np.generic]) -> Image:
    """Convert (13, h, w) counts of Sentinel-2 to reflectance from 0 to 1."""
    clipped = np.clip(counts.astype(np.float32), 0, FULL_REFLECTANCE)
    return clipped / np.float32(FULL_REFLECTANCE)


def to_backscatter(decibels: NDArray[np.generic]) -> Image:
    """Convert (2, h, w) decibels of VV and VH to 0 for the weakest echo up to 1 for the strongest."""
    minimum = np.array(MIN_DB, dtype=np.float32)[:, None, None]
    return 1 - np.clip(decibels.astype(np.float32), minimum, 0) / minimum


def to_counts(reflectance: Image, kind: np.dtype[Any]) -> NDArray[np.generic]:
    """Convert (13, h, w) reflectance to counts of Sentinel-2 in the dtype `kind`, the inverse of `to_reflectance`."""
    counts = np.clip(reflectance, 0, 1) * np.float32(FULL_REFLECTANCE)
    if kind.kind in "iu":
        counts = np.rint(counts).clip(max=np.iinfo(kind).max)
    return counts.astype(kind)
