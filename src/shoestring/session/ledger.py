"""What each session of a run took, what it got done and why it ended: the sum of the run's record.

The record is only ever appended to, so a session that died without a word is in the ledger as well: the next one finds
what it had begun, and what was lost of it.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

Event = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class SessionRecord:
    """One stretch of wall-clock on one machine. Times are unix seconds; what took no time may be unknown: None."""

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
    """From the start of its process; of one that was killed, to the last thing known of it."""
    gpu_seconds: float
    """The same where the machine has GPUs, used or not, one or two: so Kaggle's quota counts."""
    saving_seconds: float
    """Spent on saving, partly beside training."""
    stall_seconds: float
    """Training stood still for saving."""
    evaluating_seconds: float
    waiting_seconds: float
    """Training stood still for data."""
    redone_updates: int
    """Updates beyond the last save, which the next session did again."""
    saves: tuple[float, ...]

    @property
    def updates(self) -> int:
        return max(0, self.reached_update - self.start_update)

    def json(self) -> dict[str, Any]:
        """The line of the ledger: the saves are counted."""
        return {**dataclasses.asdict(self), "updates": self.updates, "saves": len(self.saves)}


def sessions(events: Iterable[Event], status: str) -> list[SessionRecord]:
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


def ledger(found: Iterable[SessionRecord]) -> dict[str, Any]:
    """The ledger as JSON: its sessions, and what the run has taken in all."""
    lines = [session.json() for session in found]
    summed = [name for name in SessionRecord.__annotations__ if name.endswith("seconds")]
    return {
        "sessions": lines,
        "total": {name: sum(line[name] for line in lines) for name in (*summed, "updates", "redone_updates", "saves")},
    }


def pauses(found: list[SessionRecord]) -> list[tuple[float, float]]:
    """From when to when the run rested between its sessions."""
    return [(old.end, new.start) for old, new in pairwise(found) if new.start > old.end]


def slowest(events: Iterable[Event]) -> dict[str, float]:
    """Seconds of the slowest `save` and `update` (on average over a line of progress) of the last session among
    `events` that had any: what a new session must expect before it has measured its own.
    """
    found: dict[str, tuple[int, float]] = {}
    for event in events:
        if event["event"] == "save" and event.get("kind") == "full":
            kind, seconds = "save", _number(event, "seconds")
        elif event["event"] == "progress" and _number(event, "updates"):
            kind, seconds = "update", _number(event, "seconds") / _number(event, "updates")
        else:
            continue
        session, longest = found.get(kind, (0, 0.0))
        found[kind] = event["session"], max(seconds, longest) if session == event["session"] else seconds
    return {kind: seconds for kind, (_, seconds) in found.items()}


def _session(group: list[Event], opening: Event, following: Event | None, without_stop: str) -> SessionRecord:
    began = group[0]["time"] - _number(opening, "startup_seconds")
    reached = max(map(_update, group))
    ended = max(event["time"] for event in group)
    stop = next((event for event in group if event["event"] == "stop"), {})
    saves = [event for event in group if event["event"] == "save"]
    seconds = _number(stop, "seconds") or ended - began
    return SessionRecord(
        number=group[0]["session"],
        start=began,
        end=ended,
        start_update=_update(opening),
        reached_update=reached,
        ended=str(stop.get("status", without_stop)),
        reason=str(stop.get("reason") or ""),
        device=str(opening.get("device") or ""),
        seconds=seconds,
        gpu_seconds=seconds if _has_gpu(opening) else 0.0,
        saving_seconds=_number(stop, "saving_seconds") or _sum(saves, "seconds"),
        # A save that does not say how long it stood in the way did so all the time.
        stall_seconds=sum(_number(save, "stall_seconds" if "stall_seconds" in save else "seconds") for save in saves),
        evaluating_seconds=_number(stop, "evaluating_seconds") or _sum(group, "seconds", "evaluation"),
        waiting_seconds=_sum(group, "waiting_seconds", "progress"),
        redone_updates=max(0, reached - _update(following)) if following else 0,
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
    """A finite number of an event; 0 where it has none."""
    value = event.get(key)
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    return 0.0
