"""The data that the steps of a session share."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from shoestring.data.loading import Loader
from shoestring.data.order import DataOrder
from shoestring.engine.recovery import OutOfMemory, Recovering
from shoestring.engine.state import State, TrainingState
from shoestring.train.meter import Meter
from shoestring.train.record import Record
from shoestring.train.request import SessionRequest
from shoestring.train.saving import Saver


class Reports(Protocol):
    """Reports updates: the engine's meter, or the reader of a library's log."""

    def flush(self) -> None:
        """Report the updates since the last report, before something other than an update starts."""

    def restart(self) -> None:
        """Exclude the time since `flush`, before updates continue."""


@dataclass(frozen=True, kw_only=True)
class EngineUpdates:
    """The objects with which the engine makes the updates."""

    state: TrainingState
    order: DataOrder
    loader: Loader
    meter: Meter
    recovering: Recovering


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
    notes: tuple[str, ...] = ()
    """Notes for the user about the data, the model and the settings."""
