"""Images as inputs of the vision transformer."""

import numpy as np
import torch
from PIL import Image
from torch import Tensor

# The constants of BLIP's image processor (transformers/image_utils.py, OPENAI_CLIP_MEAN and OPENAI_CLIP_STD).
MEAN = torch.tensor([0.48145466, 0.4578275, 0.40821073])[:, None, None]
DEVIATION = torch.tensor([0.26862954, 0.26130258, 0.27577711])[:, None, None]


def to_tensor(image: Image.Image, side: int) -> Tensor:
    """Return the image as (3, side, side) float32, resized and normalized like BLIP's image processor."""
    values = np.asarray(image.convert("RGB").resize((side, side), Image.Resampling.BICUBIC), dtype=np.float32)
    pixels: Tensor = (torch.from_numpy(values).permute(2, 0, 1) / 255 - MEAN) / DEVIATION
    return pixels.contiguous()
