import numpy as np
import torch

from shoestring.recipes.cloud.scale import Image
from shoestring.recipes.cloud.tiles import Crops, Place

HEIGHT, WIDTH = 40, 56


class Places:
    """Tiles whose every value says where it lies."""

    def __len__(self) -> int:
        return 3

    def cut(self, index: int, place: Place) -> tuple[Image, Image, Image]:
        at = np.arange(HEIGHT * WIDTH, dtype=np.float32).reshape(1, HEIGHT, WIDTH)
        cut = place(HEIGHT, WIDTH).cut(at)
        return cut, cut + 0.25, cut + 0.5


def corner(image: torch.Tensor) -> tuple[int, int]:
    return divmod(int(image[0, 0, 0]), WIDTH)


def test_the_middle_of_a_tile_is_evaluated() -> None:
    crops = Crops(Places(), 16, anywhere=False)
    cloudy, radar, clear = crops[1]
    assert len(crops) == 3 and cloudy.shape == (1, 16, 16)
    assert corner(cloudy) == (12, 20)
    assert torch.equal(radar, cloudy + 0.25) and torch.equal(clear, cloudy + 0.5)


def test_every_place_of_a_tile_is_trained_on() -> None:
    crops = Crops(Places(), 16, anywhere=True)
    torch.manual_seed(0)
    corners = {corner(crops[0][0]) for _ in range(1500)}
    assert {top for top, _ in corners} == set(range(25))
    assert {left for _, left in corners} == set(range(41))


def test_a_crop_is_drawn_from_torch_s_generator() -> None:
    crops = Crops(Places(), 16, anywhere=True)
    torch.manual_seed(1)
    first = crops[0][0]
    torch.manual_seed(1)
    assert torch.equal(crops[0][0], first)
    assert any(not torch.equal(crops[0][0], first) for _ in range(3))


def test_a_crop_may_be_all_of_a_tile() -> None:
    crops = Crops(Places(), HEIGHT, anywhere=True)
    assert all(corner(crops[0][0])[0] == 0 for _ in range(5))
