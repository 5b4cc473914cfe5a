import numpy as np
import pytest
import torch
from torch import Tensor, nn

from shoestring_recipes.cloud.windows import place_spans, remove_clouds, windows_at_once


class Fake(nn.Module):
    """Adds to the cloudy image a constant, and half of the radar image; at the border of each window it is wrong."""

    def __init__(self, error: float = 0.0) -> None:
        super().__init__()
        self.constant = nn.Parameter(torch.tensor(0.25))
        self.error, self.shapes = error, []

    def forward(self, cloudy: Tensor, radar: Tensor) -> Tensor:
        self.shapes.append(tuple(cloudy.shape))
        clear = cloudy + self.constant + radar.mean(dim=1, keepdim=True) / 2
        clear[..., 0] += self.error
        return clear


@pytest.mark.parametrize(("height", "width"), [(64, 64), (70, 33), (32, 32), (20, 45), (1, 1), (48, 7)])
def test_a_tile_of_any_size_is_covered(height: int, width: int) -> None:
    random = np.random.RandomState(0)
    cloudy = random.uniform(0, 1, (13, height, width)).astype(np.float32)
    radar = random.uniform(0, 1, (2, height, width)).astype(np.float32)
    model = Fake()
    with torch.no_grad():
        clear = remove_clouds(model, cloudy, radar, 32)
    np.testing.assert_allclose(clear, cloudy + 0.25 + radar.mean(axis=0) / 2, atol=1e-6)
    assert all(shape[0] <= 16 and shape[1:] == (13, 32, 32) for shape in model.shapes)  # a few windows at a time


@pytest.mark.parametrize(("side", "count"), [(256, 3), (128, 1), (100, 1), (129, 2), (4096, 43)])
def test_windows_overlap_by_at_least_a_quarter(side: int, count: int) -> None:
    starts = [span.start for span in place_spans(side, 128)]
    assert len(starts) == count and starts[0] == 0 and starts[-1] == max(0, side - 128)
    assert all(0 < step <= 96 for step in np.diff(starts))


def test_the_number_of_windows_at_once_is_that_of_one_published_crop() -> None:
    assert [windows_at_once(crop) for crop in (16, 32, 128, 256)] == [64, 16, 1, 1]


def test_the_border_of_a_window_leaves_no_seam() -> None:
    zeros = [np.zeros((bands, 64, 64), dtype=np.float32) for bands in (13, 2)]
    with torch.no_grad():
        clear = remove_clouds(Fake(error=1.0), *zeros, 32) - 0.25
    assert clear[:, :, 0].min() > 0.99  # the border of the tile has no other window
    assert clear[:, :, 1:].max() < 0.01
