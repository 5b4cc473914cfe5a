import pytest
import torch

from shoestring.recipes.cloud.attention import Pair, WindowAttention, join, neighbours, relative_positions, split


def block(shift: int, *, drop_path: float = 0.0, pixels: int = 16) -> WindowAttention:
    torch.manual_seed(0)
    return WindowAttention(8, 2, pixels=pixels, shift=shift, drop_path=drop_path)


def images(count: int = 2, pixels: int = 16) -> Pair:
    torch.manual_seed(1)
    return Pair(*(torch.randn(count, 8, pixels, pixels) for _ in range(2)))


def reached(attention: WindowAttention, row: int, column: int) -> torch.Tensor:
    """(16, 16) bool: the optical pixels that the one at `row`, `column` of the result depends on."""
    seen = Pair(*(image.requires_grad_() for image in images(1)))
    (gradient,) = torch.autograd.grad(attention(seen).optical[0, :, row, column].sum(), seen.optical)
    return gradient[0].abs().sum(dim=0) > 1e-20  # where a mask is, next to nothing is left


def test_windows_are_put_together_as_they_were_split() -> None:
    image = torch.randn(2, 16, 24, 3)
    windows = split(image)
    assert windows.shape == (2 * 2 * 3, 64, 3)
    torch.testing.assert_close(windows[1], image[0, :8, 8:16].reshape(64, 3))
    torch.testing.assert_close(join(windows, *image.shape), image)


def test_relative_positions_name_the_way_between_two_pixels() -> None:
    pairs = relative_positions()
    assert pairs.shape == (64, 64) and len(pairs.unique()) == 225 and (pairs.min(), pairs.max()) == (0, 224)
    assert pairs[0, 1] == pairs[10, 11] == pairs[62, 63]
    assert pairs[0, 1] != pairs[1, 0] != pairs[0, 8]


def test_a_pixel_sees_its_window() -> None:
    seen = reached(block(0), 3, 12)
    assert seen[:8, 8:].all() and seen.sum() == 64


def test_a_shifted_window_does_not_reach_over_the_border() -> None:
    inside, corner = reached(block(4), 6, 6), reached(block(4), 1, 1)
    assert inside[4:12, 4:12].all() and inside.sum() == 64
    assert corner[:4, :4].all() and corner.sum() == 16


def test_the_mask_parts_pixels_of_both_ends() -> None:
    mask = neighbours(16, 4)
    assert mask.shape == (4, 64, 64)
    assert [int((window == 0).sum()) for window in mask] == [64 * 64, 2 * 32 * 32, 2 * 32 * 32, 4 * 16 * 16]


def test_a_single_window_is_not_shifted() -> None:
    assert block(4, pixels=8).shift == 0


def test_the_radar_decides_what_the_optical_image_attends_to_and_not_the_reverse() -> None:
    attention, seen = block(0), images()
    before = attention(seen)
    radar = attention(Pair(seen.optical, torch.randn_like(seen.radar)))
    optical = attention(Pair(torch.randn_like(seen.optical), seen.radar))
    assert not torch.allclose(before.optical, radar.optical)
    torch.testing.assert_close(before.radar, optical.radar)


@pytest.mark.parametrize("training", [True, False])
def test_some_samples_drop_a_path_while_training(training: bool) -> None:
    attention = block(0, drop_path=0.5).train(training)
    change = torch.ones(200, 2, 2, 1)
    values = attention._drop(change).unique().tolist()
    assert values == ([0.0, 2.0] if training else [1.0])
    assert attention._drop(change).mean() == pytest.approx(1, abs=0.3)
