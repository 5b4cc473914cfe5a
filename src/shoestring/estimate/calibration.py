"""What a run measured, for the next prediction on the same device."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from shoestring.errors import UsageError
from shoestring.estimate.spread import Spread

LEAST_LINES = 3
"""Lines of progress below which a run shows neither a speed nor how much it varies."""


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """How a device's measured updates compare with the predicted ones of one run."""

    device: str
    """The device's title."""
    factor: float
    """Measured over predicted without any calibration, at the median: of the arithmetic, without waiting for data."""
    spread: Spread
    """Factors on a calibrated prediction between which this run's own lines of progress lay. Another recipe or other
    settings on the same device may lie outside: the run says nothing about them."""
    input_seconds: float
    """Seconds of an update for which training stood still for data, at the mean."""
    save_rate: float | None
    """Bytes/s of its full saves from the copy until they were verified; None where it made none."""


def calibration(run: str, plan: Mapping[str, Any], events: Sequence[Mapping[str, Any]]) -> Calibration:
    """Compare the measured updates among the `events` of the `run` of this name with its plan (`Plan.json()`).

    A session's first line is left out, and all with another microbatch than the plan's: they are of other updates.
    Raises UsageError for a plan without a predicted time, and for too few updates.
    """
    predicted = _number(_at(plan, "time", "update_seconds"))
    if predicted is None or predicted <= 0:
        raise UsageError(f"the plan of {run} predicts no time", hint="give a run on a device with known rates")
    lines = list(_lines(events, _at(plan, "target"), _at(plan, "settings", "micro_batch")))
    if len(lines) < LEAST_LINES:
        raise UsageError(
            f"{run} has {len(lines)} lines of progress that tell its speed, of at least {LEAST_LINES}",
            hint="let it train for some seconds more",
        )
    uncalibrated = predicted / (_number(_at(plan, "time", "calibration")) or 1.0)
    each = sorted((seconds - waited) / updates for updates, seconds, waited in lines)
    middle, cut = median(each), len(each) // 20
    updates = sum(line[0] for line in lines)
    return Calibration(
        device=str(_at(plan, "device")),
        factor=middle / uncalibrated,
        spread=Spread(
            low=each[cut] / middle,
            high=each[-1 - cut] / middle,
            source=f"{updates:.0f} updates measured in {run} ({_at(plan, 'recipe')}): {middle / uncalibrated:.2f} "
            "times the prediction",
        ),
        input_seconds=sum(line[2] for line in lines) / updates,
        save_rate=_save_rate(events),
    )


def _lines(
    events: Sequence[Mapping[str, Any]], target: object, micro_batch: object
) -> Iterator[tuple[float, float, float]]:
    """Updates, seconds and seconds waited for data of each line of progress that counts."""
    counts, first = False, False
    for event in events:
        if event["event"] == "session":
            counts = event.get("target") == target and event.get("micro_batch") == micro_batch
            first = True
        elif event["event"] == "oom":
            counts = False
        elif event["event"] == "progress":
            updates, seconds = _number(event.get("updates")), _number(event.get("seconds"))
            waited = _number(event.get("waiting_seconds")) or 0.0
            if counts and not first and updates and seconds and seconds > waited:
                yield updates, seconds, waited
            first = False


def _save_rate(events: Sequence[Mapping[str, Any]]) -> float | None:
    saves = [
        (_number(event.get("bytes")) or 0.0, _number(event.get("seconds")) or 0.0)
        for event in events
        if event["event"] == "save" and event.get("kind") == "full"
    ]
    size, seconds = (sum(column) for column in zip(*saves, strict=True)) if saves else (0.0, 0.0)
    return size / seconds if seconds else None


def _at(values: Mapping[str, Any], *path: str) -> Any:
    found: Any = values
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    return found


def _number(value: object) -> float | None:
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    return None
