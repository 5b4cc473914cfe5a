"""Similarity of an image to the clear one, for each image of a batch, in the four metrics that the field reports.

All are computed as in UnCRtainTS (Ebel et al., 2023; `model/src/learning/metrics.py`), on values that should lie
between 0 and 1 and are not clipped to it. Two details differ: pixels without any light have no spectrum and are
excluded from SAM, where one of them makes an image's metric NaN there; and an exact copy has 100 dB, not infinity.
"""

import torch
from torch import Tensor
from torch.nn.functional import conv2d

_WINDOW, _SIGMA = 11, 1.5
_C1, _C2 = 0.01**2, 0.03**2
_MIN_RMSE = 1e-5
"""Root mean square error below which images are equal: a tenth of a count of Sentinel-2."""


def scores(image: Tensor, clear: Tensor) -> dict[str, Tensor]:
    """Return `psnr` in dB, `ssim`, `sam` in degrees and `mae` of n images (n, bands, height, width): (n,) float64."""
    # Autocast leaves float64 alone; below fp32 the differences of squares in SSIM would be rounding errors only.
    image, clear = image.double(), clear.double()
    return {
        "psnr": psnr(image, clear),
        "ssim": ssim(image, clear),
        "sam": sam(image, clear),
        "mae": (image - clear).abs().mean(dim=(1, 2, 3)),
    }


def psnr(image: Tensor, clear: Tensor) -> Tensor:
    """Return the peak signal-to-noise ratio for a peak of 1, in dB, over all bands and pixels of an image: (n,)."""
    error = (image - clear).square().mean(dim=(1, 2, 3)).sqrt()
    return -20 * torch.log10(error.clamp(min=_MIN_RMSE))


def sam(image: Tensor, clear: Tensor) -> Tensor:
    """Return the mean angle between the spectra of corresponding pixels (Kruse et al., 1993), in degrees: (n,).

    The angle is NaN for a clear image without any light, and 90 degrees for a pixel of `image` that is 0.
    """
    lengths = image.norm(dim=1) * clear.norm(dim=1)
    products = (image * clear).sum(dim=1)
    cosines = torch.where(lengths > 0, products / lengths, 0).clamp(-1, 1)
    lit = (clear != 0).any(dim=1)
    angles = torch.rad2deg(torch.acos(cosines)) * lit
    return angles.sum(dim=(1, 2)) / lit.sum(dim=(1, 2))


def ssim(image: Tensor, clear: Tensor) -> Tensor:
    """Return the mean structural similarity (Wang et al., 2004) over bands and pixels, with zero padding: (n,)."""
    return ssim_map(image, clear).mean(dim=(1, 2, 3))


def ssim_map(image: Tensor, clear: Tensor) -> Tensor:
    """Return the structural similarity around each pixel in each band, (n, bands, height, width)."""
    image_mean, clear_mean = _blur(image), _blur(clear)
    image_variance = _blur(image * image) - image_mean * image_mean
    clear_variance = _blur(clear * clear) - clear_mean * clear_mean
    covariance = _blur(image * clear) - image_mean * clear_mean
    similarity = (2 * image_mean * clear_mean + _C1) * (2 * covariance + _C2)
    return similarity / (
        (image_mean * image_mean + clear_mean * clear_mean + _C1) * (image_variance + clear_variance + _C2)
    )


def _blur(image: Tensor) -> Tensor:
    """Return the Gaussian-weighted mean of the 11 x 11 pixels around each pixel."""
    count, bands, height, width = image.shape
    offsets = torch.arange(_WINDOW, dtype=image.dtype, device=image.device) - _WINDOW // 2
    weights = torch.exp(-(offsets**2) / (2 * _SIGMA**2))
    weights = weights / weights.sum()
    single = image.reshape(count * bands, 1, height, width)
    vertical = conv2d(single, weights.view(1, 1, -1, 1), padding=(_WINDOW // 2, 0))
    return conv2d(vertical, weights.view(1, 1, 1, -1), padding=(0, _WINDOW // 2)).view_as(image)
