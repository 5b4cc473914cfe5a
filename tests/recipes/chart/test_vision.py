import pytest
import torch
from transformers.vision_utils import get_vision_position_ids, get_vision_window_index

from shoestring.recipes.chart.vision import Images


@pytest.mark.parametrize(("grid", "merge", "window"), [((32, 40), 2, 4), ((8, 16), 2, 4), ((12, 6), 1, 3)])
def test_patches_and_windows_lie_where_transformers_puts_them(grid: tuple[int, int], merge: int, window: int) -> None:
    images = Images(grid, merge=merge, window=window)
    asked = torch.tensor([[1, *grid]])
    order, borders = get_vision_window_index(asked, merge, window_size=14 * merge * window, patch_size=14)
    assert torch.equal(images.positions, get_vision_position_ids(asked, merge))
    assert torch.equal(images.order, order)
    assert (borders.diff() == images.per_window).all() and borders[-1] == images.patches


def test_windows_that_do_not_fill_an_image_are_refused() -> None:
    with pytest.raises(ValueError, match="do not fill 32 x 36"):
        Images((32, 36), merge=2, window=4)
