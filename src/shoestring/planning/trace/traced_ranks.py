"""The ranks of a traced update: one of them runs, and the others are assumed to do the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import Tensor

from shoestring.training.engine.parallel.ranks import Ranks

T = TypeVar("T")


@dataclass(frozen=True)
class TracedRanks(Ranks):
    """Ranks of which this one is traced. Exchanges have no kernels: estimates count their time by the link."""

    on_exchange: Callable[[Sequence[Tensor]], None] = lambda _: None
    on_step: Callable[[], None] = lambda: None

    @property
    def can_overlap(self) -> bool:
        """The operators are those of an exchange after backward, which does not divide the record of identical blocks.
        Estimates count the overlap by the record.
        """
        return False

    def call(self, act: Callable[[], T], position: Any = None) -> Any:  # noqa: ARG002
        self.on_step()
        return act()

    def call_and_gather(
        self,
        act: Callable[[], T],
        facts: Callable[[T], Sequence[float]],
        *,
        count: int,  # noqa: ARG002
        position: Any = None,  # noqa: ARG002
    ) -> Any:
        result = act()
        return result, [list(facts(result))] * self.size

    def share(self, act: Callable[[], Any]) -> Any:
        return act()

    def add(self, *tensors: Tensor) -> None:
        self.on_exchange(tensors)

    def broadcast(self, *tensors: Tensor, rank: int = 0) -> None:  # noqa: ARG002
        self.on_exchange(tensors)
