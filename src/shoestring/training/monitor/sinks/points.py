"""The numbers of a run over its updates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from shoestring.base.reading import number

_PROGRESS = {
    "loss": "train/loss",
    "learning_rate": "train/learning_rate",
    "gradient_norm": "train/gradient_norm",
    "skipped": "train/skipped_steps",
    "memory_bytes": "memory/device_bytes",
    "host_bytes": "memory/host_bytes",
    "gpu_utilisation": "gpu/utilisation",
    "gpu_watts": "gpu/watts",
}
"""Names of the fields of an event `progress`."""


@dataclass(frozen=True)
class Point:
    """Numbers after an update, by name, at a time in unix seconds."""

    update: int
    time: float
    values: Mapping[str, float]


def point(event: Mapping[str, Any]) -> Point | None:
    """Return the numbers of an event (`training/monitor/events.py`); None if it has none."""
    match event["event"]:
        case "progress":
            values = dict(_progress(event))
        case "evaluation":
            values = dict(_numbers(event.get("metrics"), f"{event.get('part', 'validation')}/"))
        case _:
            values = {}
    return Point(event.get("update", 0), event["time"], values) if values else None


def _progress(event: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for field, name in _PROGRESS.items():
        if (value := number(event.get(field))) is not None:
            yield name, value
    seconds = number(event.get("seconds")) or 0.0
    if seconds > 0:
        for field in ("updates", "samples"):
            if (count := number(event.get(field))) is not None:
                yield f"speed/{field}_per_second", count / seconds
        if (waiting := number(event.get("waiting_seconds"))) is not None:
            yield "speed/waiting_share", waiting / seconds
    yield from _numbers(event.get("metrics"), "train/")


def _numbers(metrics: object, prefix: str) -> Iterator[tuple[str, float]]:
    if isinstance(metrics, Mapping):
        for name, value in metrics.items():
            if (converted := number(value)) is not None:
                yield f"{prefix}{name}", converted
