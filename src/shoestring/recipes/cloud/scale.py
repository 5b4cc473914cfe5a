"""From what the satellites' files hold to numbers between 0 and 1.

The bounds are those of GLF-CR and of the dataset's own loader (Xu et al., 2022; Ebel et al., 2020).
"""

import numpy as np
from numpy.typing import NDArray

OPTICAL, RADAR = 13, 2
"""Bands of Sentinel-2, and of Sentinel-1 (VV and VH)."""
FULL_REFLECTANCE = 10_000
"""The count of Sentinel-2 that means that all light comes back."""
LOWEST_DB = (-25.0, -32.5)
"""Of VV and VH; what is weaker is noise. The strongest echo that counts is 0 dB."""

Image = NDArray[np.float32]


def reflectance(counts: NDArray[np.generic]) -> Image:
    """(13, h, w) counts of Sentinel-2 -> reflectance from 0 to 1."""
    clipped = np.clip(counts.astype(np.float32), 0, FULL_REFLECTANCE)
    return clipped / np.float32(FULL_REFLECTANCE)


def backscatter(decibels: NDArray[np.generic]) -> Image:
    """(2, h, w) decibels of VV and VH -> 0 for the weakest echo, 1 for the strongest."""
    lowest = np.array(LOWEST_DB, dtype=np.float32)[:, None, None]
    return 1 - np.clip(decibels.astype(np.float32), lowest, 0) / lowest
