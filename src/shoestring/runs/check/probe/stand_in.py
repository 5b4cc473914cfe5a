"""Data for a recipe that has none: batches of `batch(size)`, with which its updates can be tried all the same."""

from collections.abc import Sequence
from typing import Any


class WithStandInData:
    """`recipe` with a part `data` of so many samples; each batch is what `batch` returns for its size."""

    length = label = packed_batch = capacity = None

    def __init__(self, recipe: Any, samples: int) -> None:
        self._recipe, self._samples = recipe, samples

    def __getattr__(self, name: str) -> Any:
        if name == "_recipe":  # of a copy that is being made
            raise AttributeError(name)
        return getattr(self._recipe, name)

    def data(self) -> dict[str, Sequence[int]]:
        return {"train": range(self._samples)}

    def collate(self, samples: Sequence[int]) -> Any:
        return self._recipe.batch(len(samples))
