"""The ledger of a run: the duration, the progress and the end of each session, computed from the run's events.

Events are only appended, so the ledger includes sessions that were killed: their earlier events show what they did, and
the start of the next session shows how much of it was lost.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from shoestring.base.reading import number

Event = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class SessionRecord:
    """A period of wall-clock time on one machine. Times are unix seconds."""

    number: int
    start: float
    end: float
    """The time of its last event."""
    start_update: int
    reached_update: int
    ended: str
    """`finished`, `paused`, `failed`, `killed` (without a stop event) or `running`."""
    reason: str
    device: str
    processes: int
    """The number of processes that train together."""
    seconds: float
    """The duration from the start of its process; to the last event if it was killed."""
    gpu_seconds: float
    """The same if the machine has GPUs, used or not, whatever their number: Kaggle's quota is counted like this."""
    saving_seconds: float
    """The time spent on saving, partly in parallel with training."""
    stall_seconds: float
    """The time that training was stopped for saving."""
    evaluating_seconds: float
    waiting_seconds: float
    """The time that training waited for data."""
    redone_updates: int
    """Updates after the last save, which the next session had to repeat."""
    saves: tuple[float, ...]

    @property
    def updates(self) -> int:
        return max(0, self.reached_update - self.start_update)

    def json(self) -> dict[str, Any]:
        """Return the session's entry in the ledger, with the number of saves instead of their times."""
        return {**dataclasses.asdict(self), "updates": self.updates, "saves": len(self.saves)}


def sessions(events: Iterable[Event], status: str) -> list[SessionRecord]:
    """Return the sessions of a run with this `status` from all of its `events`, in order."""
    grouped: dict[int, list[Event]] = {}
    for event in events:
        grouped.setdefault(event["session"], []).append(event)
    groups = list(grouped.values())
    openings = [next((event for event in group if event["event"] == "session"), None) for group in groups]
    records = []
    for index, (group, opening) in enumerate(zip(groups, openings, strict=True)):
        # A session may fail before it starts training; the next one that did start shows where the run continued.
        next_opening = next((later for later in openings[index + 1 :] if later), None)
        status_without_stop = "running" if status == "running" and group is groups[-1] else "killed"
        records.append(_session_record(group, opening or group[0], next_opening, status_without_stop))
    return records


def ledger(records: Iterable[SessionRecord]) -> dict[str, Any]:
    """Return the ledger as JSON: the sessions and their totals."""
    entries = [record.json() for record in records]
    summed = [name for name in SessionRecord.__annotations__ if name.endswith("seconds")]
    return {
        "sessions": entries,
        "total": {
            name: sum(entry[name] for entry in entries) for name in (*summed, "updates", "redone_updates", "saves")
        },
    }


def pauses(records: list[SessionRecord]) -> list[tuple[float, float]]:
    """Return the (start, end) of each pause between two sessions."""
    return [(earlier.end, later.start) for earlier, later in pairwise(records) if later.start > earlier.end]


def slowest_durations(events: Iterable[Event]) -> dict[str, float]:
    """Return the seconds of the slowest `save` and `update` of the last session that had any, by kind.

    The time of an update is the average over a progress event. A new session expects these durations until it has
    measured its own.
    """
    slowest_durations: dict[str, tuple[int, float]] = {}
    for event in events:
        if event["event"] == "save" and event.get("kind") == "full":
            kind, seconds = "save", _number(event, "seconds")
        elif event["event"] == "progress" and _number(event, "updates"):
            kind, seconds = "update", _number(event, "seconds") / _number(event, "updates")
        else:
            continue
        session, longest = slowest_durations.get(kind, (0, 0.0))
        slowest_durations[kind] = event["session"], max(seconds, longest) if session == event["session"] else seconds
    return {kind: seconds for kind, (_, seconds) in slowest_durations.items()}


def _session_record(
    group: list[Event], opening: Event, next_opening: Event | None, status_without_stop: str
) -> SessionRecord:
    start = group[0]["time"] - _number(opening, "startup_seconds")
    reached = max(map(_update, group))
    end = max(event["time"] for event in group)
    stop = next((event for event in group if event["event"] == "stop"), {})
    saves = [event for event in group if event["event"] == "save"]
    seconds = _number(stop, "seconds") or end - start
    return SessionRecord(
        number=group[0]["session"],
        start=start,
        end=end,
        start_update=_update(opening),
        reached_update=reached,
        ended=str(stop.get("status", status_without_stop)),
        reason=str(stop.get("reason") or ""),
        device=str(opening.get("device") or ""),
        processes=int(_number(opening, "processes")) or 1,
        seconds=seconds,
        gpu_seconds=seconds if _has_gpu(opening) else 0.0,
        saving_seconds=_number(stop, "saving_seconds") or _sum(saves, "seconds"),
        # A save without a stall time stopped training for its whole duration.
        stall_seconds=sum(_number(save, "stall_seconds" if "stall_seconds" in save else "seconds") for save in saves),
        evaluating_seconds=_number(stop, "evaluating_seconds")
        or _sum(group, "seconds", "evaluation") + _sum(group, "seconds", "answers"),
        waiting_seconds=_sum(group, "waiting_seconds", "progress"),
        redone_updates=max(0, reached - _update(next_opening)) if next_opening else 0,
        saves=tuple(event["time"] for event in saves),
    )


def _has_gpu(opening: Event) -> bool:
    machine = opening.get("machine")
    return str(opening.get("device")).startswith("cuda") or (isinstance(machine, dict) and bool(machine.get("gpus")))


def _update(event: Event) -> int:
    return int(_number(event, "update"))


def _sum(events: Iterable[Event], key: str, kind: str | None = None) -> float:
    return sum(_number(event, key) for event in events if kind is None or event["event"] == kind)


def _number(event: Mapping[str, Any], key: str) -> float:
    """Return a finite number of an event; 0 if it has none under this key."""
    return number(event.get(key)) or 0.0
