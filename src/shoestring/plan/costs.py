"""The cost of the chosen settings in time, disk space and host memory."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shoestring.estimate.disk import checkpoint_bytes
from shoestring.hardware.catalog import Target
from shoestring.plan.candidates import Candidate
from shoestring.plan.shares import gpus_of, states_shares
from shoestring.settings import Settings
from shoestring.units import plural

_FP32 = 4
"""Bytes of each value of an adapter's weights."""

COPY_SHARE = 1.1
"""The maximum size of a save's copy of the state in host memory, as a multiple of the state; the next save reuses the
copy's memory (checkpoint/snapshot.py)."""


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
    parts: Mapping[str, float]
    """The predicted seconds of an update, by phase."""
    evaluation_seconds: float | None
    """The seconds of one pass over the validation data; None if unknown, 0 if there are none."""
    source: str
    """How the time of an update was determined."""
    calibration: float = 1.0
    """The factor by which a run's measurement changed the prediction."""

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
        """
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
class Usage:
    """The peak usage in bytes, by part, and its limit."""

    parts: Mapping[str, int]
    """The parts sum to `peak_bytes`."""
    limit_bytes: int | None
    """What the target has; None without a limit."""

    @property
    def peak_bytes(self) -> int:
        """The peak usage."""
        return sum(self.parts.values())

    @property
    def fits(self) -> bool:
        """Whether the peak is within the limit."""
        return self.limit_bytes is None or self.peak_bytes <= self.limit_bytes

    def json(self) -> dict[str, Any]:
        """Return the usage as JSON.

        Keys:
            parts (list of objects): the parts of the peak
            parts.name (text): what uses the bytes
            parts.bytes (integer): how many it uses
        """
        return {
            "peak_bytes": self.peak_bytes,
            "limit_bytes": self.limit_bytes,
            "fits": self.fits,
            "parts": [{"name": name, "bytes": size} for name, size in self.parts.items()],
        }


@dataclass(frozen=True, kw_only=True)
class PlannedDisk(Usage):
    """The peak disk usage of the run's directory, and the platform's limit.

    The recipe's own data and caches are stored elsewhere and are not counted, because their size is unknown.
    """

    full_checkpoint_bytes: int
    """The bytes of a full checkpoint."""
    light_checkpoint_bytes: int
    """The bytes of a folder with weights alone."""
    export_bytes: Mapping[str, int] = field(default_factory=dict)
    """The bytes of an export after training, by its format, in addition to the run; empty if they are not known."""
    epochs: int = 1
    """The epochs of the run, at whose ends checkpoints may be retained."""

    def json(self) -> dict[str, Any]:
        return {
            "full_checkpoint_bytes": self.full_checkpoint_bytes,
            "light_checkpoint_bytes": self.light_checkpoint_bytes,
            "export_bytes": dict(self.export_bytes),
            "epochs": self.epochs,
            **super().json(),
        }


@dataclass(frozen=True, kw_only=True)
class PlannedHost(Usage):
    """The known part of the peak usage of host memory, and the machine's capacity.

    Data loading processes and CUDA's libraries with their loaded kernels are not counted.
    """


def planned_time(
    chosen: Candidate,
    per_epoch: int | None,
    total_updates: int,
    *,
    effective_batch: int = 1,
    validation_samples: int | None = None,
) -> PlannedTime:
    """Return the time of an update, an epoch of `per_epoch` updates (None: no data), and the whole run.

    A pass over the validation data takes the time of its forward passes. It is not part of an epoch's time; the
    sessions include it.
    """

    def duration(update_seconds: float | None) -> Duration:
        epoch = update_seconds * per_epoch if update_seconds is not None and per_epoch else None
        return Duration(
            update_seconds=update_seconds,
            epoch_seconds=epoch,
            total_seconds=epoch * (total_updates / per_epoch) if epoch and per_epoch else None,
        )

    seconds = chosen.time
    if seconds is None:
        unknown = duration(None)
        return PlannedTime(
            predicted=unknown,
            low=unknown,
            high=unknown,
            parts={},
            evaluation_seconds=None,
            source="no rates are known for this device",
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


def planned_disk(chosen: Candidate, target: Target, *, adapters: bool = False, epochs: int = 1) -> PlannedDisk:
    """Return the peak disk usage.

    It counts the retained checkpoints, the one being written, and light weights: the best, the last, those of retained
    epochs, and one being written. With `adapters`, light weights are peft's folders (checkpoint/light.py).
    """
    size, facts = checkpoint_bytes(chosen.trace, states_shares(chosen.settings)), chosen.trace.facts
    rounded = chosen.settings.light_weights != "own"
    light = size.light - (facts.rounded_bytes if rounded else 0)
    if adapters:
        light = size.light - facts.weight_bytes + (_FP32 // 2 if rounded else _FP32) * facts.parameters_trainable
    return PlannedDisk(
        full_checkpoint_bytes=size.full,
        light_checkpoint_bytes=light,
        export_bytes=facts.export_bytes,
        parts=disk_parts(size.full, light, chosen.settings, epochs),
        epochs=epochs,
        limit_bytes=target.platform.disk_bytes if target.platform else None,
    )


def disk_parts(full_bytes: int, light_bytes: int, settings: Settings, epochs: int) -> dict[str, int]:
    """Return the peak disk usage by part from the sizes of a full checkpoint and of light weights.

    Of the checkpoints that the setting `save_epochs` retains, that of the last epoch is one of the newest in any case.
    """
    full, light = settings.keep_checkpoints, settings.keep_light
    retained = (epochs - 1) // settings.save_epochs if settings.save_epochs else 0
    return {
        f"{full} full checkpoints": full * full_bytes,
        **({plural(retained, "checkpoint") + " at the ends of epochs": retained * full_bytes} if retained else {}),
        "one being written": full_bytes,
        "best and last weights, and one of them being written": 3 * light_bytes,
        **({f"weights of {light} epochs": light * light_bytes} if light else {}),
    }


def planned_host(chosen: Candidate, target: Target) -> PlannedHost:
    """Return the host memory while training on GPUs: a process for each, the copy for saving, and offloaded tensors.

    When training on a CPU, host memory is the device's memory and is counted there.
    """
    facts = chosen.trace.facts
    state = checkpoint_bytes(chosen.trace, states_shares(chosen.settings))
    parts = {"copy of the state for saving": round(COPY_SHARE * state.full)}
    if target.device.kind != "cpu":
        # The model is built in host memory; after it has moved to the device, the copy can use that memory.
        # Rounded up to a power of two, because repeated measurements of a process differ by some pages.
        process_bytes = 1 << max(0, facts.process_bytes - 1).bit_length()
        gpus = gpus_of(chosen.settings)
        parts["process"] = gpus * process_bytes
        if chosen.settings.offload != "no":
            parts["offloaded states and weights"] = 2 * state.full * gpus // states_shares(chosen.settings)
    return PlannedHost(parts=parts, limit_bytes=target.platform.ram_bytes if target.platform else None)
