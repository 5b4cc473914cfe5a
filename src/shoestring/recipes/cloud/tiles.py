"""Samples cut out of tiles: anywhere while training, from the middle otherwise."""

from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from shoestring.recipes.cloud.scale import Image


class Window(NamedTuple):
    """A square of a tile, in pixels."""

    top: int
    left: int
    side: int

    def cut(self, image: np.ndarray) -> np.ndarray:
        """What of (..., height, width) lies in it."""
        return image[..., self.top : self.top + self.side, self.left : self.left + self.side]


Place: TypeAlias = Callable[[int, int], Window]
"""Which window to cut out of a tile of so many rows and columns."""


class Tiles(Protocol):
    """Where samples are cut out of."""

    def __len__(self) -> int: ...

    def cut(self, index: int, place: Place) -> tuple[Image, Image, Image]:
        """Cloudy (13, side, side), radar (2, side, side) and clear (13, side, side), from 0 to 1."""


class Crops(Dataset[tuple[Tensor, Tensor, Tensor]]):
    """One square of each tile, read when it is asked for: there may be more tiles than fit into memory."""

    def __init__(self, tiles: Tiles, crop: int, *, anywhere: bool) -> None:
        self._tiles, self._crop, self._anywhere = tiles, crop, anywhere

    def __len__(self) -> int:
        return len(self._tiles)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, Tensor]:
        """Cloudy (13, crop, crop), radar (2, crop, crop) and clear (13, crop, crop), float32.

        Raises DataError where an image cannot be read.
        """
        cloudy, radar, clear = map(_tensor, self._tiles.cut(index, self._place))
        return cloudy, radar, clear

    def _place(self, height: int, width: int) -> Window:
        top, left = map(self._begin, (height, width))
        return Window(top, left, self._crop)

    def _begin(self, pixels: int) -> int:
        room = pixels - self._crop
        return int(torch.randint(room + 1, ())) if self._anywhere else room // 2


def _tensor(image: Image) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(image))
