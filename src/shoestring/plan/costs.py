"""What chosen settings cost in time, on disk and in the machine's own memory."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shoestring.estimate.disk import checkpoint_bytes
from shoestring.hardware.catalog import Target
from shoestring.plan.candidates import Candidate

_FP32 = 4
"""Bytes of an adapter's weight."""

COPY_SHARE = 1.1
"""A save's copy of the state in host memory, which is kept for the next one, as a share of the state at most
(checkpoint/snapshot.py)."""


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
    parts: Mapping[str, float]
    """Of an update's predicted seconds, by phase."""
    evaluation_seconds: float | None
    """Of one pass over the validation data; None where that is unknown, 0 where there are none."""
    source: str
    calibration: float = 1.0
    """The factor that a run's measurement put on the prediction."""

    def json(self) -> dict[str, Any]:
        low = {f"low_{name}": value for name, value in dataclasses.asdict(self.low).items()}
        high = {f"high_{name}": value for name, value in dataclasses.asdict(self.high).items()}
        return {
            **dataclasses.asdict(self.predicted),
            **low,
            **high,
            "evaluation_seconds": self.evaluation_seconds,
            "parts": [{"name": name, "seconds": seconds} for name, seconds in self.parts.items()],
            "source": self.source,
            "calibration": self.calibration,
        }


@dataclass(frozen=True, kw_only=True)
class Room:
    """Bytes at the worst moment, by what takes them, and what there is."""

    parts: Mapping[str, int]
    """The sum is `peak_bytes`."""
    limit_bytes: int | None

    @property
    def peak_bytes(self) -> int:
        return sum(self.parts.values())

    @property
    def fits(self) -> bool:
        return self.limit_bytes is None or self.peak_bytes <= self.limit_bytes

    def json(self) -> dict[str, Any]:
        return {
            "peak_bytes": self.peak_bytes,
            "limit_bytes": self.limit_bytes,
            "fits": self.fits,
            "parts": [{"name": name, "bytes": size} for name, size in self.parts.items()],
        }


@dataclass(frozen=True, kw_only=True)
class PlannedDisk(Room):
    """Of the run's directory at its fullest, and what the platform lets it have.

    Data and caches of the recipe's own lie elsewhere and are not counted: nobody knows their size.
    """

    full_checkpoint_bytes: int
    light_checkpoint_bytes: int

    def json(self) -> dict[str, Any]:
        return {
            "full_checkpoint_bytes": self.full_checkpoint_bytes,
            "light_checkpoint_bytes": self.light_checkpoint_bytes,
            **super().json(),
        }


@dataclass(frozen=True, kw_only=True)
class PlannedHost(Room):
    """Of the machine's own memory, as far as it is known, and what it has.

    Not counted: processes that fetch data, and what CUDA's libraries take once their kernels are loaded.
    """


def planned_time(
    chosen: Candidate,
    per_epoch: int | None,
    epochs: int,
    *,
    effective_batch: int = 1,
    validation_samples: int | None = None,
) -> PlannedTime:
    """The time of an update, an epoch of `per_epoch` updates (None: no data), and all epochs.

    A pass over the validation data is as many forwards; it is no part of an epoch's time, and the sessions count it.
    """

    def duration(update_seconds: float | None) -> Duration:
        epoch = update_seconds * per_epoch if update_seconds is not None and per_epoch else None
        return Duration(
            update_seconds=update_seconds, epoch_seconds=epoch, total_seconds=epoch * epochs if epoch else None
        )

    seconds = chosen.time
    if seconds is None:
        unknown = duration(None)
        return PlannedTime(
            predicted=unknown, low=unknown, high=unknown, parts={}, evaluation_seconds=None, source="nobody knows"
        )
    evaluation = None
    if per_epoch is not None:
        evaluation = seconds.parts.get("forward", 0.0) / effective_batch * (validation_samples or 0)
    return PlannedTime(
        predicted=duration(seconds.value),
        low=duration(seconds.low),
        high=duration(seconds.high),
        parts=dict(seconds.parts),
        evaluation_seconds=evaluation,
        source=seconds.source,
        calibration=seconds.calibration,
    )


def planned_disk(chosen: Candidate, target: Target, *, adapters: bool = False) -> PlannedDisk:
    """At its fullest: the checkpoints kept, the one being written, and weights alone: the best, the last, those of
    epochs that are kept, and one being written. Of `adapters` these are peft's folders (checkpoint/light.py).
    """
    size, facts = checkpoint_bytes(chosen.trace), chosen.trace.facts
    rounded = chosen.settings.light_weights != "own"
    light = size.light - (facts.rounded_bytes if rounded else 0)
    if adapters:
        light = size.light - facts.weight_bytes + (_FP32 // 2 if rounded else _FP32) * facts.parameters_trainable
    full, kept = chosen.settings.keep_checkpoints, chosen.settings.keep_light
    return PlannedDisk(
        full_checkpoint_bytes=size.full,
        light_checkpoint_bytes=light,
        parts={
            f"{full} full checkpoints": full * size.full,
            "one being written": size.full,
            "best and last weights, and one of them being written": 3 * light,
            **({f"weights of {kept} epochs": kept * light} if kept else {}),
        },
        limit_bytes=target.platform.disk_bytes if target.platform else None,
    )


def planned_host(chosen: Candidate, target: Target) -> PlannedHost:
    """While training on a GPU: the process, the copy that saves are written from, and what is offloaded.

    While a CPU trains, its memory is the device's, and is counted there.
    """
    facts = chosen.trace.facts
    state = checkpoint_bytes(chosen.trace)
    parts = {"copy of the state for saving": round(COPY_SHARE * state.full)}
    if target.device.kind != "cpu":
        # The model is built here before it goes to the device, and then its memory is free for the copy.
        # To the next power of two: two measurements of one question differ by some pages.
        parts["process"] = 1 << max(0, facts.process_bytes - 1).bit_length()
        if chosen.settings.offload != "no":
            parts["offloaded states and weights"] = 2 * state.full
    return PlannedHost(parts=parts, limit_bytes=target.platform.ram_bytes if target.platform else None)
