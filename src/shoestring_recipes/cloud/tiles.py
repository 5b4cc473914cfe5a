"""Samples cut from tiles: at random positions in training, from the center otherwise."""

from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from shoestring_recipes.cloud.scale import Image


class Window(NamedTuple):
    """A square of a tile, in pixels."""

    top: int
    left: int
    side: int

    def cut(self, image: np.ndarray) -> np.ndarray:
        """Return this square of an image (..., height, width)."""
        return image[..., self.top : self.top + self.side, self.left : self.left + self.side]


PlaceWindow: TypeAlias = Callable[[int, int], Window]
"""Chooses the window for a tile of the given height and width."""


class Tiles(Protocol):
    """A collection of tiles to cut samples from."""

    def __len__(self) -> int: ...

    def cut(self, index: int, place: PlaceWindow) -> tuple[Image, Image, Image]:
        """Return cloudy (13, side, side), radar (2, side, side) and clear (13, side, side), from 0 to 1."""

    def name(self, index: int) -> str:
        """Return what identifies a tile: the path of its cloudy image."""


class Crops(Dataset[tuple[Tensor, Tensor, Tensor]]):
    """One square of each tile, read on access, because all tiles together may exceed the memory."""

    def __init__(self, tiles: Tiles, crop: int, *, random_position: bool) -> None:
        self._tiles, self._crop, self._random_position = tiles, crop, random_position

    def __len__(self) -> int:
        return len(self._tiles)

    def name(self, index: int) -> str:
        """Return the name of the tile of a sample."""
        return self._tiles.name(index)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return cloudy (13, crop, crop), radar (2, crop, crop) and clear (13, crop, crop), float32.

        Raises DataError if an image cannot be read.
        """
        cloudy, radar, clear = map(_to_tensor, self._tiles.cut(index, self._place_window))
        return cloudy, radar, clear

    def _place_window(self, height: int, width: int) -> Window:
        top, left = map(self._choose_start, (height, width))
        return Window(top, left, self._crop)

    def _choose_start(self, pixels: int) -> int:
        max_start = pixels - self._crop
        return int(torch.randint(max_start + 1, ())) if self._random_position else max_start // 2


def _to_tensor(image: Image) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(image))
