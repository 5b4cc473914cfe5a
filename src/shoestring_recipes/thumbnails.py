"""Small images for reports."""

import io
from typing import Any

_SIDE = 240
"""The longest side in pixels."""


def encode_thumbnail(image: Any) -> bytes:
    """Return an image of PIL as a small JPEG."""
    small = image.convert("RGB")
    small.thumbnail((_SIDE, _SIDE))
    file = io.BytesIO()
    small.save(file, "jpeg", quality=85)
    return file.getvalue()
