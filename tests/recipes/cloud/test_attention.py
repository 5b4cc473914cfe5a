import pytest
import torch

from shoestring_recipes.cloud.attention import (
    Pair,
    WindowAttention,
    join_windows,
    relative_position_index,
    shifted_window_mask,
    split_windows,
)


def build_attention(shift: int, *, drop_path: float = 0.0, pixels: int = 16) -> WindowAttention:
    torch.manual_seed(0)
    return WindowAttention(8, 2, pixels=pixels, shift=shift, drop_path=drop_path)


def random_images(count: int = 2, pixels: int = 16) -> Pair:
    torch.manual_seed(1)
    return Pair(*(torch.randn(count, 8, pixels, pixels) for _ in range(2)))


def receptive_field(attention: WindowAttention, row: int, column: int) -> torch.Tensor:
    """Return (16, 16) bool: the optical input pixels that the output pixel at `row`, `column` depends on."""
    images = Pair(*(image.requires_grad_() for image in random_images(1)))
    (gradient,) = torch.autograd.grad(attention(images).optical[0, :, row, column].sum(), images.optical)
    return gradient[0].abs().sum(dim=0) > 1e-20  # masked pixels have almost no gradient


def test_join_windows_inverts_split_windows() -> None:
    image = torch.randn(2, 16, 24, 3)
    windows = split_windows(image)
    assert windows.shape == (2 * 2 * 3, 64, 3)
    torch.testing.assert_close(windows[1], image[0, :8, 8:16].reshape(64, 3))
    torch.testing.assert_close(join_windows(windows, *image.shape), image)


def test_relative_position_index_depends_on_the_offset_alone() -> None:
    index = relative_position_index()
    assert index.shape == (64, 64) and len(index.unique()) == 225 and (index.min(), index.max()) == (0, 224)
    assert index[0, 1] == index[10, 11] == index[62, 63]
    assert index[0, 1] != index[1, 0] != index[0, 8]


def test_a_pixel_sees_its_window() -> None:
    field = receptive_field(build_attention(0), 3, 12)
    assert field[:8, 8:].all() and field.sum() == 64


def test_a_shifted_window_does_not_cross_the_border() -> None:
    center, corner = receptive_field(build_attention(4), 6, 6), receptive_field(build_attention(4), 1, 1)
    assert center[4:12, 4:12].all() and center.sum() == 64
    assert corner[:4, :4].all() and corner.sum() == 16


def test_mask_separates_pixels_of_opposite_ends() -> None:
    mask = shifted_window_mask(16, 4)
    assert mask.shape == (4, 64, 64)
    assert [int((window == 0).sum()) for window in mask] == [64 * 64, 2 * 32 * 32, 2 * 32 * 32, 4 * 16 * 16]


def test_a_single_window_is_not_shifted() -> None:
    assert build_attention(4, pixels=8).shift == 0


def test_radar_influences_optical_attention_but_not_the_reverse() -> None:
    attention, images = build_attention(0), random_images()
    original = attention(images)
    with_other_radar = attention(Pair(images.optical, torch.randn_like(images.radar)))
    with_other_optical = attention(Pair(torch.randn_like(images.optical), images.radar))
    assert not torch.allclose(original.optical, with_other_radar.optical)
    torch.testing.assert_close(original.radar, with_other_optical.radar)


@pytest.mark.parametrize("training", [True, False])
def test_drop_path_applies_while_training_only(training: bool) -> None:
    attention = build_attention(0, drop_path=0.5).train(training)
    change = torch.ones(200, 2, 2, 1)
    values = attention._drop(change).unique().tolist()
    assert values == ([0.0, 2.0] if training else [1.0])
    assert attention._drop(change).mean() == pytest.approx(1, abs=0.3)
