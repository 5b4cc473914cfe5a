import math

import numpy as np
import pytest
import torch
from torch import Tensor

from shoestring.recipes.cloud.metrics import sam, scores, ssim, ssim_map


def waves() -> tuple[Tensor, Tensor]:
    """A clear image of two bands and another, (1, 2, 24, 24) float64."""
    at = np.arange(24)
    down, right = at[:, None], at[None, :]
    clear = np.stack(
        [0.5 + 0.3 * np.sin(0.37 * k * down + 0.2 * right**1.1) + 0.1 * np.cos(0.9 * k * right) for k in (1, 2)]
    )
    other = (0.8 * clear + 0.05 + 0.05 * np.sin(3 * down * right)).clip(0, 1)
    return torch.from_numpy(other)[None], torch.from_numpy(clear)[None]


def spectra(*pixels: tuple[float, ...]) -> Tensor:
    """An image of one row from the spectra of its pixels."""
    return torch.tensor(pixels, dtype=torch.float64).T[None, :, None]


def directly(image: np.ndarray, clear: np.ndarray, row: int, column: int) -> float:
    """Structural similarity at one pixel of one band by its definition, with zeros beyond the border."""
    both = [np.pad(one, 5)[row : row + 11, column : column + 11] for one in (image, clear)]
    at = np.arange(-5, 6)
    weights = np.exp(-(at[:, None] ** 2 + at[None] ** 2) / (2 * 1.5**2))
    weights /= weights.sum()
    x, y = ((weights * one).sum() for one in both)
    xx, yy = ((weights * (one - mean) ** 2).sum() for one, mean in zip(both, (x, y), strict=True))
    xy = (weights * (both[0] - x) * (both[1] - y)).sum()
    return float((2 * x * y + 1e-4) * (2 * xy + 9e-4) / ((x * x + y * y + 1e-4) * (xx + yy + 9e-4)))


def test_psnr_and_mae_by_hand() -> None:
    clear = torch.full((2, 13, 8, 8), 0.25)
    image = clear.clone()
    image[0] += 0.1
    image[1, :, :4] -= 0.02
    found = scores(image, clear)
    assert found["psnr"].tolist() == pytest.approx([20.0, -10 * math.log10(0.02**2 / 2)], rel=1e-6)
    assert found["mae"].tolist() == pytest.approx([0.1, 0.01], rel=1e-6)


def test_psnr_is_that_of_scikit_image() -> None:
    """peak_signal_noise_ratio(clear, other, data_range=1) of scikit-image 0.26."""
    assert float(scores(*waves())["psnr"]) == pytest.approx(22.303724137469246, rel=1e-12)


def test_an_exact_copy_has_100_db() -> None:
    clear = waves()[1]
    found = {name: float(value) for name, value in scores(clear, clear).items()}
    assert (found["psnr"], found["ssim"], found["mae"]) == pytest.approx((100, 1, 0))
    assert found["sam"] == pytest.approx(0, abs=1e-5)


def test_ssim_is_that_of_scikit_image_away_from_the_border() -> None:
    """structural_similarity(gaussian_weights=True, sigma=1.5, use_sample_covariance=False, data_range=1) of
    scikit-image 0.26, which leaves out 5 pixels at the border."""
    found = ssim_map(*waves())[..., 5:-5, 5:-5].mean(dim=(0, 2, 3))
    assert found.tolist() == pytest.approx([0.9331978144721408, 0.9515401736485796], rel=1e-10)


@pytest.mark.parametrize("place", [(0, 0), (3, 23), (12, 12)])
def test_ssim_is_that_of_its_definition_and_zero_beyond_the_border(place: tuple[int, int]) -> None:
    image, clear = waves()
    found = ssim_map(image, clear)[0, 1][place]
    assert float(found) == pytest.approx(directly(image[0, 1].numpy(), clear[0, 1].numpy(), *place), rel=1e-10)
    assert float(ssim(image, clear)) == pytest.approx(float(ssim_map(image, clear).mean()))


def test_angles_between_spectra_by_hand() -> None:
    clear = spectra((1, 0), (1, 0), (1, 1), (3, 4))
    image = spectra((2, 0), (1, 1), (1, 0), (-4, 3))
    assert float(sam(image, clear)) == pytest.approx((0 + 45 + 45 + 90) / 4)


def test_pixels_without_light_have_no_spectrum() -> None:
    clear = spectra((0, 0), (1, 0))
    assert float(sam(spectra((1, 1), (1, 1)), clear)) == pytest.approx(45)
    assert float(sam(spectra((1, 1), (0, 0)), clear)) == pytest.approx(90)
    assert math.isnan(float(sam(spectra((1, 1)), spectra((0, 0)))))


def test_each_image_has_its_own_and_the_type_does_not_matter() -> None:
    image, clear = waves()
    alone = scores(image, clear)
    both = scores(torch.cat([image, clear]).float(), torch.cat([clear, clear]).float())
    assert {name: float(values[0]) for name, values in both.items()} == pytest.approx(
        {name: float(value) for name, value in alone.items()}, rel=1e-5
    )


def test_half_precision_around_it_does_not_matter() -> None:
    image, clear = (one.float() for one in waves())
    with torch.autocast("cpu", torch.bfloat16):
        inside = scores(image, clear)
    outside = scores(image, clear)
    assert all(torch.equal(inside[name], outside[name]) for name in outside)
