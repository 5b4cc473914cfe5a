"""Replicas: each process has the whole model, with the same bits."""

import json
from collections.abc import Callable, Sequence
from itertools import chain, zip_longest
from typing import Any, TypeVar, cast

from torch import nn

from shoestring.training.engine.memory import Failure, retry_with_freed_memory
from shoestring.training.engine.parallel import messages
from shoestring.training.engine.parallel.default_group import without_default_group
from shoestring.training.engine.parallel.ranks import Ranks
from shoestring.training.engine.parallel.replicas import require_equal
from shoestring.training.engine.state import State
from shoestring.training.evaluation import EvaluationStrategy
from shoestring.training.processes.one_process import Processes

T = TypeVar("T")


class Replicas(Processes):
    """Several processes that train one model. The first one saves it, and does what needs a single process."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.number, self.count, self.is_first = ranks.rank, ranks.size, ranks.is_first

    def call(self, act: Callable[[], T]) -> T | Failure:
        return self.ranks.call(act)

    def call_first(self, act: Callable[[], T]) -> T | None:
        return self.ranks.call_first(act)

    def call_in_turn(self, act: Callable[[], T]) -> T:
        return self.ranks.call_in_turn(act)

    def share(self, act: Callable[[], Any]) -> Any:
        return self.ranks.share(act)

    def is_any(self, act: Callable[[], bool]) -> bool:
        _, rows = self.ranks.call_and_gather(act, lambda is_true: [is_true], count=1)
        return any(is_true for (is_true,) in rows)

    def mean(self, value: float) -> float:
        return sum(value for (value,) in self.ranks.gather([value])) / self.count

    def collect(self, act: Callable[[], Any]) -> list[Any]:
        own = b"" if self.is_first else json.dumps(act()).encode()
        return [json.loads(content) for content in self.ranks.send_to_first(own)]

    def require_same(self, facts: Callable[[], Any], require: Callable[[Any, Any], None]) -> None:
        own = facts()
        first = self.share(lambda: own)
        self.call(lambda: require(own, first))

    def require_equal_weights(self, model: nn.Module, update: int) -> None:
        require_equal(model, self.ranks, update)

    def save(self, act: Callable[[], None]) -> None:
        self.call_first(lambda: retry_with_freed_memory(act, "saving a checkpoint"))

    def evaluation(self, state: State, *, is_divisible: bool) -> EvaluationStrategy:  # noqa: ARG002
        return DividedEvaluation(self.ranks) if is_divisible else EvaluationByFirst(self.ranks)


class EvaluationByFirst(EvaluationStrategy):
    """The first process evaluates, and tells the others its result."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks

    def run(self, attempts: Callable[[], T]) -> T:
        return cast("T", self._ranks.share(without_default_group()(attempts)))


class DividedEvaluation(EvaluationStrategy):
    """Each process evaluates every `stride`th batch. The first one combines the results in the order of the batches."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self.offset, self.stride = ranks.rank, ranks.size

    def run(self, attempts: Callable[[], T]) -> T:
        return attempts()

    def metrics(self, compute: Callable[[], Any], combine: Callable[[Any], dict[str, Any]]) -> dict[str, Any] | Failure:
        @without_default_group()
        def compute_own() -> tuple[list[Any], bytes]:
            own_results = compute()
            return own_results, b"" if self._ranks.is_first else messages.pack(own_results)

        computed = self._ranks.call(compute_own)
        if isinstance(computed, Failure):
            return computed
        results, content = computed
        contents = self._ranks.send_to_first(content)

        @without_default_group()
        def combine_all() -> dict[str, Any]:
            if not self._ranks.is_first:
                return {}
            return combine(_in_turn([results, *map(messages.unpack, contents)]))

        metrics = self._ranks.call(combine_all)
        return metrics if isinstance(metrics, Failure) else cast("dict[str, Any]", self._ranks.share(lambda: metrics))


def _in_turn(results_by_rank: Sequence[Sequence[Any]]) -> list[Any]:
    """Return the results in the order of the batches: the first of each rank, then the second of each."""
    missing = object()
    return [result for result in chain(*zip_longest(*results_by_rank, fillvalue=missing)) if result is not missing]
