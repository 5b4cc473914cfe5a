"""The processes of a session as the steps of training see them, and the strategy of a single one."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from shoestring.training.checkpoint.store import Store
from shoestring.training.data.logical_shards import LogicalShards
from shoestring.training.engine.memory import Failure, retry_with_freed_memory
from shoestring.training.engine.state import State
from shoestring.training.evaluation import EvaluationStrategy

T = TypeVar("T")


class Processes:
    """The interface of the strategies. This class is the one of a single process, which has nobody to agree with."""

    number, count = 0, 1
    """The number of this process, from 0, and that of all of them."""
    is_first = True
    """Whether this process writes to the run's directory."""
    has_whole_weights = True
    """Whether each process has the whole model."""
    sharding: str | None = None
    """How the weights are divided, if that decides the bits of the run."""

    def shards(self, count: int | None) -> LogicalShards:
        """Return the logical shards of an update, of which there are by default as many as processes."""
        return LogicalShards.of_rank(count or self.count, self.number, self.count)

    # What the processes do, and agree on. All of them call these methods in the same order.

    def call(self, act: Callable[[], T]) -> T | Failure:
        """Call `act` in every process, and return its result when all have completed it.

        Returns a Failure in all of them if one has run out of memory. An error or SessionOver of one is raised in all.
        """
        return act()

    def call_first(self, act: Callable[[], T]) -> T | None:
        """Call `act` in the first process while the others wait, and return its result there."""
        return act()

    def call_in_turn(self, act: Callable[[], T]) -> T:
        """Call `act` in the first process, and then in the others, which can read what it has written."""
        return act()

    def share(self, act: Callable[[], Any]) -> Any:
        """Call `act` in the first process, and return its result, which is JSON, in all of them."""
        return act()

    def is_any(self, act: Callable[[], bool]) -> bool:
        """Call `act` in every process, and return whether it is true in any of them."""
        return act()

    def mean(self, value: float) -> float:
        """Return the mean of the values of all processes."""
        return value

    def collect(self, act: Callable[[], Any]) -> list[Any]:  # noqa: ARG002
        """Return in the first process what `act` returns in the others, which is JSON; elsewhere an empty list."""
        return []

    def require_same(self, facts: Callable[[], Any], require: Callable[[Any, Any], None]) -> None:
        """Call `require` in every process with its facts, which are JSON, and those of the first one."""

    # The state of training, and what is saved of it.

    def require_equal_weights(self, model: nn.Module, update: int) -> None:
        """Raise RunError in all processes if weights that each has are not the same in all of them."""

    def whole_weights(self, state: State) -> Mapping[str, Any] | None:
        """Return the weights to save if no process has all of them; None where the model has."""

    def with_writers(self) -> "Processes":
        """Return the processes that can save checkpoints, in the threads that write them. All of them call it."""
        return self

    @property
    def is_writer(self) -> bool:
        """Whether this process writes checkpoints, or a part of each."""
        return self.is_first

    def store(self, root: Path, **arguments: Any) -> Store:
        """Return the store of the checkpoints in `root`."""
        return Store(root, is_writer=self.is_writer, **arguments)

    def settle(self, finish_pending: Callable[[], None]) -> None:
        """Wait for the pending save before the next one, if the processes have to agree on its result."""

    def copy(self, take: Callable[[], T]) -> T | Failure:
        """Return the copy of the state of this process, which `take` makes for a save, if all writers have theirs."""
        return take()

    def are_finite(self, own: bool) -> bool:
        """Return whether the weights of all writers are finite, as those of this process are. A thread may call it."""
        return own

    def save(self, act: Callable[[], None]) -> None:
        """Save a checkpoint by calling `act`, which writes what this process has to write."""
        retry_with_freed_memory(act, "saving a checkpoint")

    def evaluation(self, state: State, *, is_divisible: bool) -> EvaluationStrategy:  # noqa: ARG002
        """Return who evaluates the model; a divisible evaluation combines the results of its batches."""
        return EvaluationStrategy()


ONE_PROCESS = Processes()
