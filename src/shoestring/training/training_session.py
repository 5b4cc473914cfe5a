"""The data that the steps of a session share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from shoestring.training.data.loading import Loader
from shoestring.training.data.order import DataOrder
from shoestring.training.engine.observation import Observation
from shoestring.training.engine.one_process import OneProcess
from shoestring.training.engine.parallel.updates import ShardedUpdates
from shoestring.training.engine.recovery import OutOfMemory, Recovering
from shoestring.training.engine.state import State, TrainingState
from shoestring.training.engine.update import UpdateResult
from shoestring.training.processes.one_process import Processes
from shoestring.training.record import Record
from shoestring.training.request import SessionRequest
from shoestring.training.saving import Saver


class Reports(Protocol):
    """Reports updates: the engine's meter, or the reader of a library's log."""

    def flush(self) -> None:
        """Report the updates since the last report, before something other than an update starts."""

    def restart(self) -> None:
        """Exclude the time since `flush`, before updates continue."""


class UpdateReports(Reports, Protocol):
    """Reports the updates that the engine makes: the meter of a session, or that of a replay."""

    def add(self, result: UpdateResult, *, update: int, epoch: int, samples: int, learning_rate: float) -> None:
        """Add the `result` of update number `update` (from 1), in epoch number `epoch` (from 1)."""


@dataclass(frozen=True, kw_only=True)
class EngineUpdates:
    """The objects with which the engine makes the updates."""

    state: TrainingState
    order: DataOrder
    loader: Loader
    meter: UpdateReports
    recovering: Recovering
    strategy: OneProcess | ShardedUpdates
    """Makes the updates: in one process, or in several logical shards."""
    observation: Observation | None = None
    """Watches the next update, in a replay."""


@dataclass(frozen=True, kw_only=True)
class TrainingSession:
    """One session of training. The steps do not reassign its fields; training changes the objects they refer to."""

    request: SessionRequest
    record: Record
    state: State
    saver: Saver
    reports: Reports
    updates: EngineUpdates | None = None
    """None if a library's trainer makes the updates."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """The parts to train and evaluate on; empty in a script with a trainer of its own."""
    after_kill: OutOfMemory | None = None
    """The smaller microbatch after the kernel ended the session before for lack of memory."""
    is_smaller: bool = False
    """Whether the sizes are smaller than in the checkpoint, because the processes of the session before ran out of
    memory where they could not return together."""
    notes: tuple[str, ...] = ()
    """Notes for the user about the data, the model and the settings."""
    is_discarded: bool = False
    """Whether this is no session of the run, but a replay or a probe: its start is not recorded, and held-out prompts
    are not answered."""
    watch_trainer: Callable[[Any], None] | None = None
    """In a replay: called with each of a library's trainers before it trains."""

    @property
    def processes(self) -> Processes:
        """The processes that train together."""
        return self.request.processes

    @property
    def epoch_ended(self) -> bool:
        """Whether an epoch has ended that is not evaluated yet."""
        evaluated = self.state.history[-1]["epoch"] if self.state.history else 0
        return "validation" in self.data and self.state.at_epoch_end and self.state.epochs_done > evaluated
