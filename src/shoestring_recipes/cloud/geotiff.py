"""Reading and validating the pixels of a GeoTIFF.

tifffile reads uncompressed and deflate-compressed data by itself; LZW and the floating-point predictor need imagecodecs
as well. Neither library reads anything but the given file.
"""

import re
import struct
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tifffile
from numpy.typing import NDArray

from shoestring.base.reading import open_binary, reason
from shoestring.base.units import MIB

MAX_SIDE = 4096
"""Largest side in pixels: a header that claims more would allocate memory for pixels that the file cannot contain."""
MAX_BYTES = 4096 * MIB
TYPES = ("uint8", "uint16", "int16", "uint32", "int32", "float32", "float64")

_ASCII, _SHORT, _DOUBLE = 2, 3, 12
GEO_TAGS = {
    33550: _DOUBLE,  # ModelPixelScale
    33922: _DOUBLE,  # ModelTiepoint
    34264: _DOUBLE,  # ModelTransformation
    34735: _SHORT,  # GeoKeyDirectory
    34736: _DOUBLE,  # GeoDoubleParams
    34737: _ASCII,  # GeoAsciiParams
    42112: _ASCII,  # GDAL_METADATA
    42113: _ASCII,  # GDAL_NODATA
}
"""The tags of a georeference and their types. Source: OGC 19-008r4 (GeoTIFF 1.1); gdal.org, driver GTiff."""
_NO_DATA = 42113
MAX_TAG_VALUES = 2**16
_STATISTICS = re.compile(r'<Item name="STATISTICS_[^>]*>[^<]*</Item>\s*')

# Exceptions of tifffile and its codecs for files that are truncated or not TIFF at all.
_UNREADABLE = (
    *(OSError, ValueError, TypeError, LookupError, ArithmeticError, RuntimeError, struct.error, zlib.error),
    tifffile.TiffFileError,  # a ValueError in tifffile 2025 and later
)


class UnusableImageError(Exception):
    """The reason why an image cannot be used; the caller adds the file and row that name the image."""


def read_size(path: Path, bands: int) -> tuple[int, int]:
    """Return (height, width) from the file's header, without reading its pixels.

    Raises UnusableImageError if the number of bands differs from `bands` or the file is shorter than its pixels.
    """
    with _opened(path) as file:
        return _validated_size(file, bands)


def read_pixels(path: Path, bands: int) -> NDArray[np.generic]:
    """Return the pixels (bands, height, width) of the file's first image in the file's own dtype.

    Raises UnusableImageError as `read_size` does, and if a value is not finite.
    """
    with _opened(path) as file:
        _validated_size(file, bands)
        page: Any = file.pages[0]
        pixels: NDArray[np.generic] = page.asarray()
        bands_last = page.axes == "YXS"
    if bands_last:
        pixels = np.moveaxis(pixels, -1, 0)
    if pixels.dtype.kind == "f" and (invalid_count := int(np.count_nonzero(~np.isfinite(pixels)))):
        raise UnusableImageError(f"{invalid_count:,} of {pixels.size:,} values are not finite")
    return pixels


@dataclass(frozen=True)
class GeoTag:
    """A tag of the georeference, as tifffile writes it."""

    code: int
    kind: int
    count: int
    value: Any


def read_geo_tags(path: Path) -> tuple[GeoTag, ...]:
    """Return the tags of the file's first image that say where on Earth its pixels are, and its bands' descriptions.

    A tag of another type than the standard's is left out. Raises UnusableImageError if the file cannot be read.
    """
    with _opened(path) as file:
        page: Any = file.pages[0]
        tags = [page.tags.get(code) for code in GEO_TAGS]
        return tuple(
            GeoTag(tag.code, int(tag.dtype), tag.count, _without_statistics(tag.value))
            for tag in tags
            if tag is not None and tag.dtype == GEO_TAGS[tag.code] and tag.count <= MAX_TAG_VALUES
        )


def find_no_data(tags: Iterable[GeoTag]) -> float | None:
    """Return the value of pixels where nothing was measured; None if there is no valid one."""
    for tag in tags:
        if tag.code == _NO_DATA:
            with suppress(ValueError):
                return float(tag.value)
    return None


def _without_statistics(value: Any) -> Any:
    """Remove GDAL's statistics of the pixels, which describe the cloudy image."""
    return _STATISTICS.sub("", value) if isinstance(value, str) else value


@contextmanager
def _opened(path: Path) -> Iterator[tifffile.TiffFile]:
    try:
        with open_binary(path, max_bytes=MAX_BYTES) as data, tifffile.TiffFile(data) as file:
            yield file
    except _UNREADABLE as error:
        cause = reason(error) if isinstance(error, OSError) else error
        raise UnusableImageError(f"cannot be read: {cause}") from error


def _validated_size(file: Any, bands: int) -> tuple[int, int]:
    """Return (height, width), or raise UnusableImageError if the header describes an unusable image."""
    page = file.pages[0]
    height, width, actual_bands = page.imagelength, page.imagewidth, page.samplesperpixel
    if actual_bands != bands:
        raise UnusableImageError(f"has {actual_bands} bands, not {bands}")
    if page.axes not in ("YXS", "SYX") or not (0 < height <= MAX_SIDE and 0 < width <= MAX_SIDE):
        raise UnusableImageError(
            f"has the shape {page.shape}, not that of an image of at most {MAX_SIDE} pixels a side"
        )
    if str(page.dtype) not in TYPES:
        raise UnusableImageError(f"has values of type {page.dtype}, not one of {', '.join(TYPES)}")
    required_bytes = max(map(sum, zip(page.dataoffsets, page.databytecounts, strict=True)), default=0)
    if required_bytes > file.filehandle.size:
        raise UnusableImageError(f"is truncated: {required_bytes - file.filehandle.size:,} bytes of pixels are missing")
    return height, width
