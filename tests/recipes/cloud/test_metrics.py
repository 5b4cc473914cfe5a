import math

import numpy as np
import pytest
import torch
from torch import Tensor

from shoestring_recipes.cloud.metrics import sam, scores, ssim, ssim_map


def wave_images() -> tuple[Tensor, Tensor]:
    """Return an image and a clear image of two bands, (1, 2, 24, 24) float64."""
    positions = np.arange(24)
    down, right = positions[:, None], positions[None, :]
    clear = np.stack(
        [0.5 + 0.3 * np.sin(0.37 * k * down + 0.2 * right**1.1) + 0.1 * np.cos(0.9 * k * right) for k in (1, 2)]
    )
    image = (0.8 * clear + 0.05 + 0.05 * np.sin(3 * down * right)).clip(0, 1)
    return torch.from_numpy(image)[None], torch.from_numpy(clear)[None]


def spectral_image(*pixels: tuple[float, ...]) -> Tensor:
    """Return an image of one row from the spectra of its pixels."""
    return torch.tensor(pixels, dtype=torch.float64).T[None, :, None]


def reference_ssim(image: np.ndarray, clear: np.ndarray, row: int, column: int) -> float:
    """Compute the structural similarity at one pixel of one band by its definition, with zero padding."""
    windows = [np.pad(band, 5)[row : row + 11, column : column + 11] for band in (image, clear)]
    offsets = np.arange(-5, 6)
    weights = np.exp(-(offsets[:, None] ** 2 + offsets[None] ** 2) / (2 * 1.5**2))
    weights /= weights.sum()
    x, y = ((weights * window).sum() for window in windows)
    xx, yy = ((weights * (window - mean) ** 2).sum() for window, mean in zip(windows, (x, y), strict=True))
    xy = (weights * (windows[0] - x) * (windows[1] - y)).sum()
    return float((2 * x * y + 1e-4) * (2 * xy + 9e-4) / ((x * x + y * y + 1e-4) * (xx + yy + 9e-4)))


def test_psnr_and_mae_by_hand() -> None:
    clear = torch.full((2, 13, 8, 8), 0.25)
    image = clear.clone()
    image[0] += 0.1
    image[1, :, :4] -= 0.02
    metrics = scores(image, clear)
    assert metrics["psnr"].tolist() == pytest.approx([20.0, -10 * math.log10(0.02**2 / 2)], rel=1e-6)
    assert metrics["mae"].tolist() == pytest.approx([0.1, 0.01], rel=1e-6)


def test_psnr_equals_scikit_image() -> None:
    """The value is peak_signal_noise_ratio(clear, image, data_range=1) of scikit-image 0.26."""
    assert float(scores(*wave_images())["psnr"]) == pytest.approx(22.303724137469246, rel=1e-12)


def test_an_exact_copy_has_100_db() -> None:
    clear = wave_images()[1]
    metrics = {name: float(value) for name, value in scores(clear, clear).items()}
    assert (metrics["psnr"], metrics["ssim"], metrics["mae"]) == pytest.approx((100, 1, 0))
    assert metrics["sam"] == pytest.approx(0, abs=1e-5)


def test_ssim_equals_scikit_image_inside_the_border() -> None:
    """The values are structural_similarity(gaussian_weights=True, sigma=1.5, use_sample_covariance=False, data_range=1)
    of scikit-image 0.26, which excludes 5 pixels at the border."""
    means = ssim_map(*wave_images())[..., 5:-5, 5:-5].mean(dim=(0, 2, 3))
    assert means.tolist() == pytest.approx([0.9331978144721408, 0.9515401736485796], rel=1e-10)


@pytest.mark.parametrize("place", [(0, 0), (3, 23), (12, 12)])
def test_ssim_equals_its_definition_with_zero_padding(place: tuple[int, int]) -> None:
    image, clear = wave_images()
    similarity = ssim_map(image, clear)[0, 1][place]
    assert float(similarity) == pytest.approx(
        reference_ssim(image[0, 1].numpy(), clear[0, 1].numpy(), *place), rel=1e-10
    )
    assert float(ssim(image, clear)) == pytest.approx(float(ssim_map(image, clear).mean()))


def test_angles_between_spectra_by_hand() -> None:
    clear = spectral_image((1, 0), (1, 0), (1, 1), (3, 4))
    image = spectral_image((2, 0), (1, 1), (1, 0), (-4, 3))
    assert float(sam(image, clear)) == pytest.approx((0 + 45 + 45 + 90) / 4)


def test_pixels_without_light_have_no_spectrum() -> None:
    clear = spectral_image((0, 0), (1, 0))
    assert float(sam(spectral_image((1, 1), (1, 1)), clear)) == pytest.approx(45)
    assert float(sam(spectral_image((1, 1), (0, 0)), clear)) == pytest.approx(90)
    assert math.isnan(float(sam(spectral_image((1, 1)), spectral_image((0, 0)))))


def test_metrics_are_per_image_and_independent_of_dtype() -> None:
    image, clear = wave_images()
    single = scores(image, clear)
    batch = scores(torch.cat([image, clear]).float(), torch.cat([clear, clear]).float())
    assert {name: float(values[0]) for name, values in batch.items()} == pytest.approx(
        {name: float(value) for name, value in single.items()}, rel=1e-5
    )


def test_autocast_does_not_change_the_metrics() -> None:
    image, clear = (image.float() for image in wave_images())
    with torch.autocast("cpu", torch.bfloat16):
        with_autocast = scores(image, clear)
    without_autocast = scores(image, clear)
    assert all(torch.equal(with_autocast[name], without_autocast[name]) for name in without_autocast)
