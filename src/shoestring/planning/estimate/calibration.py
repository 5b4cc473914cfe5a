"""Calibrate predictions on a device with the measurements of a run there."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from shoestring.base.errors import UsageError
from shoestring.base.reading import number
from shoestring.hardware.measured import MeasuredRates
from shoestring.planning.estimate.spread import Spread

MIN_PROGRESS_LINES = 3
"""The least number of progress lines from which a speed and its variation are computed."""


MAX_FACTOR = 1e6
"""A time that differs by more from its prediction is that of a damaged file."""


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """The measured updates of one run compared with its prediction."""

    device: str
    """The device's title."""
    factor: float
    """The median of measured over predicted seconds, without previous calibration and without waiting for data."""
    spread: Spread
    """Factors on a calibrated prediction between which this run's progress lines lie. Another recipe or other settings
    on the same device may lie outside, as the run did not measure them."""
    input_seconds: float
    """The mean seconds per update for which training waited for data."""
    save_rate: float | None
    """Bytes/s of the run's full saves from the copy until they were verified; None if there was none."""
    rates: MeasuredRates | None = None
    """Rates of the device's kernels, which replace those of the prediction; the factor is 1. None: of a run."""


def calibration(run: str, plan: Mapping[str, Any], events: Sequence[Mapping[str, Any]]) -> Calibration:
    """Compare the measured updates in the `events` of the run named `run` with its plan (`Plan.json()`).

    The first progress line of a session is excluded, as are all with a microbatch other than the plan's.
    Raises UsageError if the plan has no predicted time, or if there are too few updates.
    """
    # A plan that a probe has measured has its prediction there.
    predicted = number(_get(plan, "measured", "predicted", "update_seconds")) or number(
        _get(plan, "time", "update_seconds")
    )
    if predicted is None or predicted <= 0:
        raise UsageError(f"the plan of {run} predicts no time", hint="choose a run on a device with known rates")
    lines = list(_progress_lines(events, _get(plan, "target"), _get(plan, "settings", "micro_batch")))
    if len(lines) < MIN_PROGRESS_LINES:
        raise UsageError(
            f"{run} has {len(lines)} usable progress lines, and its speed needs at least {MIN_PROGRESS_LINES}",
            hint="train for some more seconds",
        )
    uncalibrated = predicted / (number(_get(plan, "time", "calibration")) or 1.0)
    update_seconds = sorted((seconds - waiting) / updates for updates, seconds, waiting in lines)
    typical, outliers = median(update_seconds), len(update_seconds) // 20
    factor = typical / uncalibrated if uncalibrated > 0 else math.inf
    if not 1 / MAX_FACTOR < factor < MAX_FACTOR:
        raise UsageError(
            f"{run} cannot calibrate: {typical:g} s per update were measured and {uncalibrated:g} s predicted",
            hint="choose another run; the plan or the events of this one are damaged",
        )
    updates = sum(line[0] for line in lines)
    return Calibration(
        device=str(_get(plan, "device")),
        factor=factor,
        spread=Spread(
            low=update_seconds[outliers] / typical,
            high=update_seconds[-1 - outliers] / typical,
            source=f"{updates:.0f} updates measured in {run} ({_get(plan, 'recipe')}): {factor:.2f} "
            "times the prediction",
        ),
        input_seconds=sum(line[2] for line in lines) / updates,
        save_rate=_save_rate(events),
    )


def _progress_lines(
    events: Sequence[Mapping[str, Any]], target: object, micro_batch: object
) -> Iterator[tuple[float, float, float]]:
    """Yield the updates, the seconds and the seconds of waiting for data of each usable progress line."""
    matches_plan, is_first = False, False
    for event in events:
        if event["event"] == "session":
            matches_plan = event.get("target") == target and event.get("micro_batch") == micro_batch
            is_first = True
        elif event["event"] == "oom":
            matches_plan = False
        elif event["event"] == "progress":
            updates, seconds = number(event.get("updates")), number(event.get("seconds"))
            waiting = number(event.get("waiting_seconds")) or 0.0
            if matches_plan and not is_first and updates and seconds and seconds > waiting:
                yield updates, seconds, waiting
            is_first = False


def _save_rate(events: Sequence[Mapping[str, Any]]) -> float | None:
    saves = [
        (number(event.get("bytes")) or 0.0, number(event.get("seconds")) or 0.0)
        for event in events
        if event["event"] == "save" and event.get("kind") == "full"
    ]
    size, seconds = (sum(column) for column in zip(*saves, strict=True)) if saves else (0.0, 0.0)
    return size / seconds if seconds else None


def _get(values: Mapping[str, Any], *path: str) -> Any:
    value: Any = values
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value
