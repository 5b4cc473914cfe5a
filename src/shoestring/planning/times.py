"""The predicted time of an update, of an epoch, and of all updates of a run."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shoestring.planning.candidates import Candidate
from shoestring.planning.counts import Counts
from shoestring.planning.estimate.span import Span, total
from shoestring.planning.evaluations import SHORTEST_GENERATION, Evaluations
from shoestring.planning.sessions import parts_json

_OTHER_PROCESSOR = (0.5, 2.0)
"""An assumption: the factors between which another processor's time of the host's work differs from this one's."""


@dataclass(frozen=True, kw_only=True)
class Duration:
    """Predicted seconds; all are None on a device without known rates, all but the first for a recipe without data."""

    update_seconds: float | None
    """The predicted seconds of an update, without saving and evaluating."""
    epoch_seconds: float | None
    """The same of the updates of an epoch."""
    total_seconds: float | None
    """The same of all updates of the run."""


@dataclass(frozen=True, kw_only=True)
class PlannedTime:
    """The predicted time with its range."""

    predicted: Duration
    low: Duration
    high: Duration
    parts: Mapping[str, Span]
    """The predicted seconds of an update, by phase, with their ranges."""
    evaluation_seconds: float | None
    """The seconds of one evaluation of the validation data; None if unknown, 0 if there are none."""
    source: str
    """How the time of an update was determined."""
    calibration: float = 1.0
    """The factor by which a run's measurement changed the prediction."""

    @classmethod
    def from_update(
        cls,
        update: Span,
        parts: Mapping[str, Span],
        counts: Counts,
        *,
        evaluation_seconds: float | None,
        source: str,
        calibration: float = 1.0,
    ) -> "PlannedTime":
        """Return the times of a run whose updates have this duration, the sum of `parts`."""
        return cls(
            predicted=_duration(update.seconds, counts),
            low=_duration(update.low, counts),
            high=_duration(update.high, counts),
            parts=parts,
            evaluation_seconds=evaluation_seconds,
            source=source,
            calibration=calibration,
        )

    def json(self) -> dict[str, Any]:
        """Return the times as JSON.

        Keys:
            low_update_seconds (number or null): the lower bound of `update_seconds`
            low_epoch_seconds (number or null): the lower bound of `epoch_seconds`
            low_total_seconds (number or null): the lower bound of `total_seconds`
            high_update_seconds (number or null): the upper bound of `update_seconds`
            high_epoch_seconds (number or null): the upper bound of `epoch_seconds`
            high_total_seconds (number or null): the upper bound of `total_seconds`
            parts (list of objects): the predicted seconds of an update, by phase
            parts.name (text): the phase
            parts.seconds (number): its seconds
            parts.low_seconds (number): their lower bound
            parts.high_seconds (number): their upper bound
        """
        low = {f"low_{name}": value for name, value in dataclasses.asdict(self.low).items()}
        high = {f"high_{name}": value for name, value in dataclasses.asdict(self.high).items()}
        return {
            **dataclasses.asdict(self.predicted),
            **low,
            **high,
            "evaluation_seconds": self.evaluation_seconds,
            "parts": parts_json(self.parts),
            "source": self.source,
            "calibration": self.calibration,
        }


def planned_time(
    chosen: Candidate,
    counts: Counts,
    *,
    host_work: Mapping[str, float],
    evaluations: Evaluations,
) -> PlannedTime:
    """Return the time of an update, an epoch and the whole run, without what a run does beside its updates.

    `host_work` has the seconds that the host needs for an update besides the model, by name, as measured here.
    """
    seconds = chosen.time
    if seconds is None:
        unknown = _duration(None, counts)
        return PlannedTime(
            predicted=unknown,
            low=unknown,
            high=unknown,
            parts={},
            evaluation_seconds=None,
            source="no rates are known for this device",
        )
    parts = (
        {
            name: _phase(name, part, seconds.low / seconds.value, seconds.high / seconds.value)
            for name, part in seconds.parts.items()
        }
        if seconds.value
        else {}
    )
    low, high = _OTHER_PROCESSOR
    parts |= {name: Span(value, value * low, value * high) for name, value in host_work.items()}
    update = total(parts.values())
    return PlannedTime.from_update(
        update,
        parts,
        counts,
        evaluation_seconds=evaluations.validation_seconds,
        source=seconds.source,
        calibration=seconds.calibration,
    )


def _phase(name: str, seconds: float, low: float, high: float) -> Span:
    """Return the duration of a phase, with the range of the whole update."""
    shortest = SHORTEST_GENERATION if name == "generation" else 1.0
    return Span(seconds, seconds * low * shortest, seconds * high)


def _duration(update_seconds: float | None, counts: Counts) -> Duration:
    if update_seconds is None or not counts.per_epoch:
        return Duration(update_seconds=update_seconds, epoch_seconds=None, total_seconds=None)
    return Duration(
        update_seconds=update_seconds,
        epoch_seconds=update_seconds * counts.per_epoch,
        total_seconds=update_seconds * counts.total,
    )
