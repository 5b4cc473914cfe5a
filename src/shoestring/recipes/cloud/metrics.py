"""How close an image comes to the clear one, by the four measures that the field reports, for each image of a batch.

All as UnCRtainTS computes them (Ebel et al., 2023; `model/src/learning/metrics.py`), on values that are meant to lie
between 0 and 1 and are not clipped to it. What differs: pixels without any light have no spectrum and do not count in
SAM, where one of them makes an image's NaN there; and an exact copy has 100 dB, not infinitely many.
"""

import torch
from torch import Tensor
from torch.nn.functional import conv2d

_WINDOW, _SIGMA = 11, 1.5
_C1, _C2 = 0.01**2, 0.03**2
_SMALLEST = 1e-5
"""Root mean square error below which images are equal: a tenth of a count of Sentinel-2."""


def scores(image: Tensor, clear: Tensor) -> dict[str, Tensor]:
    """`psnr` in dB, `ssim`, `sam` in degrees and `mae` of each of n images (n, bands, height, width): (n,) float64."""
    # Autocast leaves float64 alone; in less than fp32 the differences of squares in SSIM would be all rounding.
    image, clear = image.double(), clear.double()
    return {
        "psnr": psnr(image, clear),
        "ssim": ssim(image, clear),
        "sam": sam(image, clear),
        "mae": (image - clear).abs().mean(dim=(1, 2, 3)),
    }


def psnr(image: Tensor, clear: Tensor) -> Tensor:
    """Peak signal-to-noise ratio for a peak of 1, in dB, over all bands and pixels of an image: (n,)."""
    error = (image - clear).square().mean(dim=(1, 2, 3)).sqrt()
    return -20 * torch.log10(error.clamp(min=_SMALLEST))


def sam(image: Tensor, clear: Tensor) -> Tensor:
    """Mean angle between a pixel's two spectra (Kruse et al., 1993), in degrees: (n,). NaN for an image without light.

    A spectrum of the image that is 0 stands at a right angle to all others.
    """
    lengths = image.norm(dim=1) * clear.norm(dim=1)
    products = (image * clear).sum(dim=1)
    cosines = torch.where(lengths > 0, products / lengths, 0).clamp(-1, 1)
    lit = (clear != 0).any(dim=1)
    angles = torch.rad2deg(torch.acos(cosines)) * lit
    return angles.sum(dim=(1, 2)) / lit.sum(dim=(1, 2))


def ssim(image: Tensor, clear: Tensor) -> Tensor:
    """Mean structural similarity (Wang et al., 2004) over bands and pixels: (n,). Beyond the border everything is 0."""
    return ssim_map(image, clear).mean(dim=(1, 2, 3))


def ssim_map(image: Tensor, clear: Tensor) -> Tensor:
    """Structural similarity around each pixel in each band, (n, bands, height, width)."""
    seen, true = _blurred(image), _blurred(clear)
    varies, differs = _blurred(image * image) - seen * seen, _blurred(clear * clear) - true * true
    together = _blurred(image * clear) - seen * true
    alike = (2 * seen * true + _C1) * (2 * together + _C2)
    return alike / ((seen * seen + true * true + _C1) * (varies + differs + _C2))


def _blurred(image: Tensor) -> Tensor:
    """Each pixel as the mean of the 11 x 11 around it, weighed by a Gaussian."""
    count, bands, height, width = image.shape
    at = torch.arange(_WINDOW, dtype=image.dtype, device=image.device) - _WINDOW // 2
    weights = torch.exp(-(at**2) / (2 * _SIGMA**2))
    weights = weights / weights.sum()
    single = image.reshape(count * bands, 1, height, width)
    down = conv2d(single, weights.view(1, 1, -1, 1), padding=(_WINDOW // 2, 0))
    return conv2d(down, weights.view(1, 1, 1, -1), padding=(0, _WINDOW // 2)).view_as(image)
