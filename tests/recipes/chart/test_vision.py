import pytest
import torch
from transformers.vision_utils import get_vision_position_ids, get_vision_window_index

from shoestring.recipes.chart.vision import ImageLayout


@pytest.mark.parametrize(("grid", "merge", "window"), [((32, 40), 2, 4), ((8, 16), 2, 4), ((12, 6), 1, 3)])
def test_patches_and_windows_match_transformers(grid: tuple[int, int], merge: int, window: int) -> None:
    layout = ImageLayout(grid, merge=merge, window=window)
    grids = torch.tensor([[1, *grid]])
    order, borders = get_vision_window_index(grids, merge, window_size=14 * merge * window, patch_size=14)
    assert torch.equal(layout.positions, get_vision_position_ids(grids, merge))
    assert torch.equal(layout.order, order)
    assert (borders.diff() == layout.per_window).all() and borders[-1] == layout.patches


def test_windows_must_fill_the_image() -> None:
    with pytest.raises(ValueError, match="do not fill 32 x 36"):
        ImageLayout((32, 36), merge=2, window=4)
