"""What the steps of a session share."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from shoestring.data.loading import Loader
from shoestring.data.order import DataOrder
from shoestring.engine.recovery import Recovering
from shoestring.engine.state import State, TrainingState
from shoestring.train.meter import Meter
from shoestring.train.record import Record
from shoestring.train.request import SessionRequest
from shoestring.train.saving import Saver


class Reports(Protocol):
    """Reports updates: the engine's meter, or what reads a library's log."""

    def flush(self) -> None:
        """Report the updates since the last report: something else than updates follows."""

    def restart(self) -> None:
        """Updates follow: leave out the time since `flush`."""


@dataclass(frozen=True, kw_only=True)
class EngineUpdates:
    """What the engine needs to make the updates itself."""

    state: TrainingState
    order: DataOrder
    loader: Loader
    meter: Meter
    recovering: Recovering


@dataclass(frozen=True, kw_only=True)
class TrainingSession:
    """One session of training. The steps change none of its fields; training changes what they refer to."""

    request: SessionRequest
    record: Record
    state: State
    saver: Saver
    reports: Reports
    updates: EngineUpdates | None = None
    """None where a library's trainer makes the updates."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """The parts to train and evaluate on; none in a script with a trainer of its own."""
    notes: tuple[str, ...] = ()
    """What the person should know of these data, this model and these settings."""
