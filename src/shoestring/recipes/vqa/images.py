"""Loading image files as inputs of the vision transformer. An unreadable image is an error, never replaced."""

import warnings
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF")
MAX_PIXELS = 64_000_000
"""Maximum number of pixels of an image file, against corrupt files and decompression bombs."""

# The constants of BLIP's image processor (transformers/image_utils.py, OPENAI_CLIP_MEAN and OPENAI_CLIP_STD).
MEAN = torch.tensor([0.48145466, 0.4578275, 0.40821073])[:, None, None]
DEVIATION = torch.tensor([0.26862954, 0.26130258, 0.27577711])[:, None, None]


def open_image(path: Path) -> Image.Image:
    """Return the decoded image in `path`.

    Raises ValueError with the reason where it cannot be used.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            image = Image.open(path, formats=FORMATS)
        with image:
            if image.width * image.height > MAX_PIXELS:
                raise ValueError(f"the image has {image.width}x{image.height} pixels, more than {MAX_PIXELS:,}")
            return image.convert("RGB")
    except FileNotFoundError:
        raise ValueError(f"there is no image {path}") from None
    except (OSError, SyntaxError, EOFError, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        # Pillow raises SyntaxError for some broken PNG files.
        raise ValueError(f"the image {path} cannot be read: {error}") from error


def to_tensor(image: Image.Image, side: int) -> Tensor:
    """Return the image as (3, side, side) float32, resized and normalized like BLIP's image processor."""
    values = np.asarray(image.convert("RGB").resize((side, side), Image.Resampling.BICUBIC), dtype=np.float32)
    pixels: Tensor = (torch.from_numpy(values).permute(2, 0, 1) / 255 - MEAN) / DEVIATION
    return pixels.contiguous()
