"""New inputs of a trained model: what a recipe's `inputs` yields and what its `predict` returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


class Rows(tuple[Any, ...]):
    """Values of one sample that belong to several rows of the answer, one each: the sentences of a judgment."""


@dataclass(frozen=True, kw_only=True)
class Input:
    """One input: a function that loads its sample, or the reason why it cannot be used."""

    value: Any = None
    """The input as JSON, for its row: the row of the data file, a sentence, the time of a bar. `Rows` for a sample of
    several rows.
    """
    load: Callable[[], Any] | None = None
    """Returns the sample, which `collate` makes part of a batch. It raises ValueError or DataError with the reason if
    the input cannot be used. It is called once, when its batch is due, so only a few samples are in memory.
    """
    id: Any = None
    """The input's own identifier, a text or an integer; None: its position from 0."""
    error: str | None = None
    """The reason why the input cannot be used; None if it may be."""

    def __post_init__(self) -> None:
        if self.load is not None and not callable(self.load):
            raise TypeError(
                f"Input(load={self.load!r:.100}): must be a function; the reason why an input is unusable is error="
            )
