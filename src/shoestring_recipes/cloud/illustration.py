"""A sample in pictures: what the model gets, what it predicts, what is true, and where it errs."""

import io

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from shoestring.base.packages.requirements import require
from shoestring_recipes.cloud.scale import Image

MAX_ERROR = 0.2
"""The absolute error of reflectance, as the mean over the bands, that is white in the picture of the error."""
MIN_CONTRAST = 0.1
"""The smallest range of reflectance that is stretched from black to white."""
_HEAT = np.array([(0, 0, 0), (170, 20, 20), (255, 170, 30), (255, 255, 255)], dtype=np.float64)
"""The colors of no error, and of a third, two thirds and the whole of `MAX_ERROR`."""


def illustrate(model: nn.Module, sample: tuple[Tensor, Tensor, Tensor]) -> dict[str, bytes]:
    """Return the pictures of a sample (cloudy, radar, clear) as JPEGs by caption.

    The optical images have the same scale: the percentiles of the clear one. The radar image is VV.
    """
    require("cloud", "tifffile", "PIL")
    from shoestring_recipes.cloud.writing import RGB, STRETCH

    device = next(model.parameters()).device
    cloudy, radar, clear = sample
    predicted = model(cloudy[None].to(device), radar[None].to(device))[0].float().cpu()
    black, white = np.percentile(clear[list(RGB)].numpy(), STRETCH)
    optical = {"cloudy": cloudy, "predicted": predicted, "true": clear}
    pictures = {
        caption: _gray_levels((image[list(RGB)].numpy() - black) / max(white - black, MIN_CONTRAST))
        for caption, image in optical.items()
    }
    error = (predicted - clear).abs().mean(dim=0).numpy()
    return {
        "cloudy": _encode(pictures["cloudy"]),
        "radar": _encode(_gray_levels(np.repeat(radar[:1].numpy(), 3, axis=0))),
        "predicted": _encode(pictures["predicted"]),
        "true": _encode(pictures["true"]),
        "error": _encode(_heat(error / MAX_ERROR)),
    }


def _gray_levels(image: Image) -> NDArray[np.uint8]:
    """Convert (3, height, width) from 0 to 1 to (height, width, 3)."""
    levels: NDArray[np.uint8] = np.rint(np.moveaxis(image, 0, -1).clip(0, 1) * 255).astype(np.uint8)
    return levels


def _heat(values: Image) -> NDArray[np.uint8]:
    """Return the colors (height, width, 3) of values (height, width) from 0 to 1."""
    places = np.linspace(0, 1, len(_HEAT))
    channels = [np.interp(values, places, _HEAT[:, channel]) for channel in range(3)]
    return np.rint(np.stack(channels, axis=-1)).astype(np.uint8)


def _encode(colors: NDArray[np.uint8]) -> bytes:
    from PIL import Image as Pictures

    file = io.BytesIO()
    Pictures.fromarray(colors).save(file, "jpeg", quality=92, subsampling=0)
    return file.getvalue()
