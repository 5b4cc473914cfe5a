"""Reading the pixels of a GeoTIFF, and what is wrong with one.

tifffile reads what lies in the file plainly or by deflate; LZW and the predictor of floating-point numbers need
imagecodecs beside it. Neither looks anywhere but into the file it is given.
"""

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import tifffile
from numpy.typing import NDArray

LARGEST = 4096
"""Pixels on a side: a header that claims more would have memory taken for what the file cannot hold."""
TYPES = ("uint8", "uint16", "int16", "uint32", "int32", "float32", "float64")

# What tifffile and its codecs raise for files that are cut off or no TIFF at all.
_UNREADABLE = (OSError, ValueError, TypeError, LookupError, ArithmeticError, RuntimeError, struct.error, zlib.error)


class UnusableImageError(Exception):
    """Why an image cannot be used; whoever knows in which row of which file it stands says so."""


def look(path: Path, bands: int) -> tuple[int, int]:
    """(height, width) by the file's header, without reading its pixels.

    Raises UnusableImageError where it has not so many bands, or its pixels are not all there.
    """
    with _opened(path) as file:
        try:
            return _checked(file, bands)
        except _UNREADABLE as error:
            raise UnusableImageError(f"cannot be read: {error}") from error


def read(path: Path, bands: int) -> NDArray[np.generic]:
    """The pixels (bands, height, width) of the file's first image, as they stand in it.

    Raises UnusableImageError as `look` does, and where a pixel is no finite number.
    """
    with _opened(path) as file:
        try:
            _checked(file, bands)
            page: Any = file.pages[0]
            pixels: NDArray[np.generic] = page.asarray()
        except _UNREADABLE as error:
            raise UnusableImageError(f"cannot be read: {error}") from error
        by_pixel = page.axes == "YXS"
    if by_pixel:
        pixels = np.moveaxis(pixels, -1, 0)
    if pixels.dtype.kind == "f" and (lost := int(np.count_nonzero(~np.isfinite(pixels)))):
        raise UnusableImageError(f"{lost:,} of {pixels.size:,} values are no finite numbers")
    return pixels


def _opened(path: Path) -> tifffile.TiffFile:
    try:
        return tifffile.TiffFile(path)
    except _UNREADABLE as error:
        said = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise UnusableImageError(f"cannot be read: {said}") from error


def _checked(file: Any, bands: int) -> tuple[int, int]:
    page = file.pages[0]
    height, width, found = page.imagelength, page.imagewidth, page.samplesperpixel
    if found != bands:
        raise UnusableImageError(f"has {found} bands, not {bands}")
    if page.axes not in ("YXS", "SYX") or not (0 < height <= LARGEST and 0 < width <= LARGEST):
        raise UnusableImageError(f"is of {page.shape}, not an image of at most {LARGEST} pixels on a side")
    if str(page.dtype) not in TYPES:
        raise UnusableImageError(f"has values of type {page.dtype}, not one of {', '.join(TYPES)}")
    ends = max(map(sum, zip(page.dataoffsets, page.databytecounts, strict=True)), default=0)
    if ends > file.filehandle.size:
        raise UnusableImageError(f"ends {ends - file.filehandle.size:,} bytes before its pixels do")
    return height, width
