"""From an image's file to what the vision transformer takes. Nothing stands in for an image that cannot be read."""

import warnings
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF")
MOST_PIXELS = 64_000_000
"""Of an image's file; what claims more is a mistake or meant to fill the memory."""

# Of BLIP's image processor, which has them from CLIP (transformers/image_utils.py, OPENAI_CLIP_MEAN and _STD).
MEAN = torch.tensor([0.48145466, 0.4578275, 0.40821073])[:, None, None]
DEVIATION = torch.tensor([0.26862954, 0.26130258, 0.27577711])[:, None, None]


def opened(path: Path) -> Image.Image:
    """The image in `path`, decoded.

    Raises ValueError saying why it cannot be used.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            image = Image.open(path, formats=FORMATS)
        with image:
            if image.width * image.height > MOST_PIXELS:
                raise ValueError(f"the image has {image.width}x{image.height} pixels, more than {MOST_PIXELS:,}")
            return image.convert("RGB")
    except FileNotFoundError:
        raise ValueError(f"there is no image {path}") from None
    except (OSError, SyntaxError, EOFError, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        # Pillow raises SyntaxError for some broken PNG files.
        raise ValueError(f"the image {path} cannot be read: {error}") from error


def pixels(image: Image.Image, side: int) -> Tensor:
    """(3, side, side) float32: resized and normalised as BLIP's image processor does."""
    values = np.asarray(image.convert("RGB").resize((side, side), Image.Resampling.BICUBIC), dtype=np.float32)
    found: Tensor = (torch.from_numpy(values).permute(2, 0, 1) / 255 - MEAN) / DEVIATION
    return found.contiguous()
