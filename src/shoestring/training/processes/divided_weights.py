"""Divided weights: each process has some rows of each weight, which FSDP2 gathers for forward and backward."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar, cast

from shoestring.training.checkpoint.light import weights_to_save
from shoestring.training.checkpoint.store import Store
from shoestring.training.engine.memory import Failure, no_memory_error
from shoestring.training.engine.parallel.fully_sharded import FullySharded
from shoestring.training.engine.parallel.ranks import ONE_RANK, Ranks
from shoestring.training.engine.state import State
from shoestring.training.evaluation import EvaluationStrategy, Pieces
from shoestring.training.processes.replicas import Replicas
from shoestring.training.shared_store import SharedStore

T = TypeVar("T")


class DividedWeights(Replicas):
    """Several processes, each of which has some rows of the model's weights, and saves them."""

    has_whole_weights = False
    is_writer = True

    def __init__(self, ranks: Ranks, sharding: str, writers: Ranks = ONE_RANK) -> None:
        """The `writers` are the ranks with a group for the threads that write checkpoints; `with_writers` makes it."""
        super().__init__(ranks)
        self._setting, self._writers = sharding, writers
        # Gradients that are added by FSDP2 are rounded in an order that the number of GPUs decides.
        self.sharding = f"{sharding} on {ranks.size} GPUs"

    def whole_weights(self, state: State) -> Mapping[str, Any] | None:
        assert state.fully_sharded is not None
        return state.fully_sharded.collect(weights_to_save(state.model))

    def with_writers(self) -> Self:
        return type(self)(self.ranks, self._setting, self.ranks.with_own_group())

    def store(self, root: Path, **arguments: Any) -> Store:
        return SharedStore(root, self._writers, **arguments)

    def settle(self, finish_pending: Callable[[], None]) -> None:
        finish_pending()

    def copy(self, take: Callable[[], T]) -> T | Failure:
        return self._writers.call(take)

    def are_finite(self, own: bool) -> bool:
        return all(is_finite for (is_finite,) in self._writers.gather([own]))

    def save(self, act: Callable[[], None]) -> None:
        result = self.call(act)
        if isinstance(result, Failure):
            raise no_memory_error("saving a checkpoint", result.message)

    def evaluation(self, state: State, *, is_divisible: bool) -> EvaluationStrategy:  # noqa: ARG002
        assert state.fully_sharded is not None
        return JointEvaluation(self.ranks, state.fully_sharded)


class JointEvaluation(EvaluationStrategy):
    """All processes compute each batch together."""

    def __init__(self, ranks: Ranks, model: FullySharded) -> None:
        self._ranks, self._model = ranks, model

    def run(self, attempts: Callable[[], T]) -> T:
        with self._model.freeing():
            result = attempts()
        return cast("T", self._ranks.share(lambda: result))

    def attempt(self, compute: Callable[[], T]) -> T | Failure:
        return cast("T | Failure", self._model.call(compute))

    def agree(self, pieces: Pieces) -> Pieces:
        return self._model.agree(pieces)
