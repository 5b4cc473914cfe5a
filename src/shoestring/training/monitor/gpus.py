"""The GPUs of a run beside each other, as pure functions of its events: which of them is slow, and why."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shoestring.base.reading import number

_KEY = "ranks"
NOTICEABLE_SHARE = 0.05
"""Of the time of updates: GPUs that wait for less are equally fast."""


@dataclass(frozen=True, kw_only=True)
class GpuTimes:
    """What one GPU did in the updates of the last session with several GPUs, in seconds of wall clock."""

    memory_bytes: int
    """The last that was reported."""
    updating: float
    exchange: float
    waiting: float
    """For slower GPUs."""
    input: float
    """For data."""


def gpu_times(events: Iterable[Mapping[str, Any]]) -> list[GpuTimes]:
    """Return the times of each GPU of the last session that had several; [] if there is none."""
    reports = [event for event in events if event["event"] == "progress" and reports_of(event)]
    reports = [event for event in reports if event["session"] == reports[-1]["session"]]
    reports = [event for event in reports if len(event[_KEY]) == len(reports[-1][_KEY])]
    updating = sum(number(event.get("seconds")) or 0.0 for event in reports)
    return [
        GpuTimes(
            memory_bytes=int(_sum(of_gpu[-1:], "memory_bytes")),
            updating=updating,
            exchange=_sum(of_gpu, "exchange_seconds"),
            waiting=_sum(of_gpu, "waiting_seconds"),
            input=_sum(of_gpu, "input_seconds"),
        )
        for of_gpu in zip(*(event[_KEY] for event in reports), strict=True)
    ]


def describe_slowest(times: list[GpuTimes]) -> str:
    """Return a sentence about the GPU for which the others wait, and why."""
    slowest = min(range(len(times)), key=lambda number: times[number].waiting)
    faster_gpus = [gpu for number, gpu in enumerate(times) if number != slowest]
    waiting = max(gpu.waiting for gpu in faster_gpus)
    updating = times[slowest].updating
    if waiting <= NOTICEABLE_SHARE * updating:
        return "All GPUs are equally fast."
    more_input = times[slowest].input - min(gpu.input for gpu in faster_gpus)
    reason = (
        "it waits for its data"
        if more_input > waiting / 2
        else "its computation takes longer: another model, a lower clock, or other programs on it or on its cores"
    )
    return (
        f"GPU {slowest} is the slowest: others wait for it for {waiting / updating:.0%} of the time, because {reason}."
    )


def as_facts(reports: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Return the part of a `progress` event about each of several GPUs."""
    return {_KEY: reports}


def reports_of(event: Mapping[str, Any]) -> list[Any]:
    """Return what a `progress` event reports of each of several GPUs; [] if there is one."""
    reports = event.get(_KEY)
    is_valid = isinstance(reports, list) and len(reports) > 1 and all(isinstance(gpu, Mapping) for gpu in reports)
    return reports if is_valid and reports else []


def _sum(reports: Iterable[Mapping[str, Any]], key: str) -> float:
    return sum(number(report.get(key)) or 0.0 for report in reports)
