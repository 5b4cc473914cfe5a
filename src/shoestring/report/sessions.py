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
    openings = [next((event for event in group if event["event"] == "session"), None) for group in groups]
    found = []
    for index, (group, opening) in enumerate(zip(groups, openings, strict=True)):
        # A session may fail before it begins; the one after it that did begin says where the run went on.
        following = next((later for later in openings[index + 1 :] if later), None)
        open_end = "running" if status == "running" and group is groups[-1] else "killed"
        found.append(_session(group, opening or group[0], following, open_end))
    return found


def pauses(found: list[Session]) -> list[tuple[float, float]]:
    """From when to when the run rested between its sessions."""
    return [(old.end, new.start) for old, new in pairwise(found) if new.start > old.end]


def _session(group: list[Event], opening: Event, following: Event | None, without_stop: str) -> Session:
    began = group[0]["time"]
    reached = max(map(_update, group))
    ended = max(event["time"] for event in group)
    stop = next((event for event in group if event["event"] == "stop"), {})
    return Session(
        number=group[0]["session"],
        start=began,
        end=ended,
        start_update=_update(opening),
        reached_update=reached,
        ended=str(stop.get("status", without_stop)),
        reason=str(stop.get("reason") or ""),
        device=str(opening.get("device") or ""),
        seconds=number(stop.get("seconds")) or ended - began,
        saving_seconds=number(stop.get("saving_seconds")),
        evaluating_seconds=number(stop.get("evaluating_seconds")),
        redone_updates=max(0, reached - _update(following)) if following else 0,
        saves=tuple(event["time"] for event in group if event["event"] == "save"),
    )


def _update(event: Event) -> int:
    return int(number(event.get("update")) or 0)
