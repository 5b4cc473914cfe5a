"""Reading image files. An unreadable image is an error, never replaced."""

import io
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from shoestring.base.reading import read_bytes, reason
from shoestring.base.units import MIB

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF")
MAX_PIXELS = 64_000_000
"""Maximum number of pixels of an image file, against corrupt files and decompression bombs."""
MAX_BYTES = 256 * MIB

# Exceptions of Pillow for files that are truncated, manipulated or no images.
_UNREADABLE = (
    *(OSError, ValueError, SyntaxError, EOFError, LookupError, ArithmeticError, TypeError, RuntimeError, struct.error),
    *(Image.DecompressionBombError, Image.DecompressionBombWarning),
)


def open_image(path: Path) -> Image.Image:
    """Return the decoded image in `path`.

    Raises ValueError with the reason where it cannot be used.
    """
    return decode_image(_read(path), f"the image {path}")


def verify_image(path: Path) -> tuple[int, int]:
    """Return width and height of the image in `path`.

    Raises ValueError with the reason where it cannot be used, as far as its header shows.
    """
    return verify_content(_read(path), f"the image {path}")


def decode_image(content: bytes, name: str) -> Image.Image:
    """Return the decoded image that a file or a cell of a table contains; `name` names it in errors.

    Raises ValueError with the reason where it cannot be used.
    """
    with _opened(content, name) as image:
        return image.convert("RGB")


def verify_content(content: bytes, name: str) -> tuple[int, int]:
    """Return width and height of the image in `content`, as `verify_image` does."""
    with _opened(content, name) as image:
        image.verify()
        return image.size


def _read(path: Path) -> bytes:
    # In memory, because a file's reader would allocate as much as a manipulated header claims to follow.
    try:
        return read_bytes(path, follow=True, max_bytes=MAX_BYTES)
    except FileNotFoundError:
        raise ValueError(f"there is no image {path}") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"the image {path} cannot be read: {reason(error)}") from error


@contextmanager
def _opened(content: bytes, name: str) -> Iterator[Image.Image]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            image = Image.open(io.BytesIO(content), formats=FORMATS)
        if image.width * image.height > MAX_PIXELS:
            raise ValueError(f"it has {image.width}x{image.height} pixels, more than {MAX_PIXELS:,}")
        with image:
            yield image
    except UnidentifiedImageError:
        raise ValueError(f"{name} cannot be read: it is no file of {', '.join(FORMATS)}") from None
    except _UNREADABLE as error:
        # Pillow raises SyntaxError for some broken PNG files.
        cause = reason(error) if isinstance(error, OSError) else error
        raise ValueError(f"{name} cannot be read: {cause}") from error
