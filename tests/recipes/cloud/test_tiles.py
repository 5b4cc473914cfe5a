import numpy as np
import torch

from shoestring_recipes.cloud.scale import Image
from shoestring_recipes.cloud.tiles import Crops, PlaceWindow

HEIGHT, WIDTH = 40, 56


class IndexTiles:
    """Tiles in which the value of each pixel is its index."""

    def __len__(self) -> int:
        return 3

    def cut(self, index: int, place: PlaceWindow) -> tuple[Image, Image, Image]:
        indices = np.arange(HEIGHT * WIDTH, dtype=np.float32).reshape(1, HEIGHT, WIDTH)
        crop = place(HEIGHT, WIDTH).cut(indices)
        return crop, crop + 0.25, crop + 0.5


def corner(image: torch.Tensor) -> tuple[int, int]:
    return divmod(int(image[0, 0, 0]), WIDTH)


def test_fixed_crops_are_at_the_center() -> None:
    crops = Crops(IndexTiles(), 16, random_position=False)
    cloudy, radar, clear = crops[1]
    assert len(crops) == 3 and cloudy.shape == (1, 16, 16)
    assert corner(cloudy) == (12, 20)
    assert torch.equal(radar, cloudy + 0.25) and torch.equal(clear, cloudy + 0.5)


def test_random_crops_reach_every_position() -> None:
    crops = Crops(IndexTiles(), 16, random_position=True)
    torch.manual_seed(0)
    corners = {corner(crops[0][0]) for _ in range(1500)}
    assert {top for top, _ in corners} == set(range(25))
    assert {left for _, left in corners} == set(range(41))


def test_random_crops_use_the_generator_of_torch() -> None:
    crops = Crops(IndexTiles(), 16, random_position=True)
    torch.manual_seed(1)
    first = crops[0][0]
    torch.manual_seed(1)
    assert torch.equal(crops[0][0], first)
    assert any(not torch.equal(crops[0][0], first) for _ in range(3))


def test_a_crop_may_be_as_high_as_its_tile() -> None:
    crops = Crops(IndexTiles(), HEIGHT, random_position=True)
    assert all(corner(crops[0][0])[0] == 0 for _ in range(5))
