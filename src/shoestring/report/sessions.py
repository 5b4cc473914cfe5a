"""A run's sessions: when each began, how it ended, what it got done and what a kill took back."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from shoestring.monitor.events import Event
from shoestring.report.values import number


@dataclass(frozen=True, kw_only=True)
class Session:
    """One stretch of wall-clock on one machine. Times are unix seconds."""

    number: int
    start: float
    end: float
    """The last thing known of it."""
    start_update: int
    reached_update: int
    ended: str
    """`finished`, `paused`, `failed`, `killed` (there is no stop event) or `running`."""
    reason: str
    device: str
    seconds: float
    saving_seconds: float | None
    evaluating_seconds: float | None
    redone_updates: int
    """Updates beyond the last save, which the next session did again."""
    saves: tuple[float, ...]

    @property
    def updates(self) -> int:
        return max(0, self.reached_update - self.start_update)


def sessions(events: Iterable[Event], status: str) -> list[Session]:
    """The sessions among all `events` of a run with this `status`, in order."""
    grouped: dict[int, list[Event]] = {}
    for event in events:
        grouped.setdefault(event["session"], []).append(event)
    groups = list(grouped.values())
    starts = [_update(group[0]) for group in groups]
    reached = [max(map(_update, group)) for group in groups]
    redone = [max(0, end - start) for end, start in zip(reached, starts[1:], strict=False)]
    last = "running" if status == "running" else "killed"
    return [
        _session(group, start, end, again, "killed" if index < len(groups) - 1 else last)
        for index, (group, start, end, again) in enumerate(
            zip(groups, starts, reached, [*redone, 0], strict=True)
        )
    ]


def pauses(found: list[Session]) -> list[tuple[float, float]]:
    """From when to when the run rested between its sessions."""
    return [(old.end, new.start) for old, new in pairwise(found) if new.start > old.end]


def _session(group: list[Event], start: int, reached: int, redone: int, without_stop: str) -> Session:
    began = group[0]["time"]
    ended = max(event["time"] for event in group)
    stop = next((event for event in group if event["event"] == "stop"), {})
    return Session(
        number=group[0]["session"],
        start=began,
        end=ended,
        start_update=start,
        reached_update=reached,
        ended=str(stop.get("status", without_stop)),
        reason=str(stop.get("reason") or ""),
        device=str(group[0].get("device") or ""),
        seconds=number(stop.get("seconds")) or ended - began,
        saving_seconds=number(stop.get("saving_seconds")),
        evaluating_seconds=number(stop.get("evaluating_seconds")),
        redone_updates=redone,
        saves=tuple(event["time"] for event in group if event["event"] == "save"),
    )


def _update(event: Event) -> int:
    return int(number(event.get("update")) or 0)
