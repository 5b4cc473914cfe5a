"""What chosen settings cost in time and on disk."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from shoestring.estimate.disk import checkpoint_bytes
from shoestring.hardware.catalog import Target
from shoestring.plan.search import Candidate


@dataclass(frozen=True, kw_only=True)
class Duration:
    """Predicted seconds; None is unknown: all on a device without known rates, all but the first without data."""

    update_seconds: float | None
    epoch_seconds: float | None
    total_seconds: float | None


@dataclass(frozen=True, kw_only=True)
class PlannedTime:
    """The prediction between a low and a high one."""

    predicted: Duration
    low: Duration
    high: Duration

    def json(self) -> dict[str, Any]:
        low = {f"low_{name}": value for name, value in dataclasses.asdict(self.low).items()}
        high = {f"high_{name}": value for name, value in dataclasses.asdict(self.high).items()}
        return {**dataclasses.asdict(self.predicted), **low, **high}


@dataclass(frozen=True, kw_only=True)
class PlannedDisk:
    """Bytes of the run's directory at its fullest, and what the platform lets it have."""

    full_checkpoint_bytes: int
    light_checkpoint_bytes: int
    peak_bytes: int
    limit_bytes: int | None

    @property
    def fits(self) -> bool:
        return self.limit_bytes is None or self.peak_bytes <= self.limit_bytes

    def json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "fits": self.fits}


def planned_time(chosen: Candidate, per_epoch: int | None, epochs: int) -> PlannedTime:
    """The time of an update, an epoch of `per_epoch` updates (None: no data), and all epochs."""

    def duration(update_seconds: float | None) -> Duration:
        epoch = update_seconds * per_epoch if update_seconds is not None and per_epoch else None
        return Duration(
            update_seconds=update_seconds, epoch_seconds=epoch, total_seconds=epoch * epochs if epoch else None
        )

    seconds = chosen.time
    if seconds is None:
        return PlannedTime(predicted=duration(None), low=duration(None), high=duration(None))
    return PlannedTime(predicted=duration(seconds.value), low=duration(seconds.low), high=duration(seconds.high))


def planned_disk(chosen: Candidate, target: Target) -> PlannedDisk:
    """At its fullest: the checkpoints kept, the one being written, and the best and the last weights."""
    size = checkpoint_bytes(chosen.trace)
    return PlannedDisk(
        full_checkpoint_bytes=size.full,
        light_checkpoint_bytes=size.light,
        peak_bytes=(chosen.settings.keep_checkpoints + 1) * size.full + 3 * size.light,
        limit_bytes=target.platform.disk_bytes if target.platform else None,
    )
