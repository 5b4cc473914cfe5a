"""The predicted time of what was rehearsed, from the operators that ran."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from shoestring.base.errors import RunError
from shoestring.hardware.catalog import Target
from shoestring.planning.simulator.recorded import read_folder
from shoestring.planning.simulator.time import recorded_time
from shoestring.runs.rehearse.rehearsal import RehearsedTime


@dataclass(frozen=True, kw_only=True)
class PredictedTimes:
    """Times on the target."""

    update: RehearsedTime | None = None
    """Of an update; None if none was completed or the target's rates are not known."""
    phases: Mapping[str, float] = field(default_factory=dict)
    """The seconds of what was rehearsed of other phases, by their names."""
    notes: tuple[str, ...] = ()


def predicted_times(records: Path, target: Target, ranks: int) -> PredictedTimes:
    """Return the predicted times of what the processes recorded; `ranks` train one model together."""
    try:
        times = recorded_time(read_folder(records), target.device, gpus=max(1, ranks))
    except RunError as error:  # of a file that the script has changed
        return PredictedTimes(notes=(f"no time is predicted: {error.message}",))
    if times is None:
        return PredictedTimes(notes=(f"the rates of {target.device.title} are not known, so no time is predicted",))
    phases = {"evaluation": times.evaluation.seconds, "generation": times.generation.seconds}
    known = {name: seconds for name, seconds in phases.items() if seconds}
    if times.update is None or not times.mean_update.seconds:
        return PredictedTimes(phases=known, notes=times.notes)
    # The mean of all updates has the parts of the median one.
    scale = times.mean_update.seconds / times.update.value
    return PredictedTimes(
        update=RehearsedTime(
            update_seconds=times.mean_update.seconds,
            low_seconds=times.mean_update.low,
            high_seconds=times.mean_update.high,
            parts=tuple((name, seconds * scale) for name, seconds in times.update.parts.items()),
            source=times.update.source,
        ),
        phases=known,
        notes=times.notes,
    )
