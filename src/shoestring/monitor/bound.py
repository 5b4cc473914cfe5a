"""Where a session's time went, and what training was bound by. Pure functions of its events."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Cause = Literal["input", "launches", "arithmetic", "saving", "evaluating", "starting"]

TOLERATED = 0.05
"""Share of the time below which nothing is worth doing about a cause."""

HELP: Mapping[Cause, str] = {
    "input": "more processes that fetch (workers=), a machine with more cores, or data that is cheaper to read: "
    "decoded once, staged on the local disk, or small enough to lie on the GPU",
    "launches": "a larger microbatch, an optimizer kernel for many tensors at once (optimizer_kernel=foreach or "
    "fused): the GPU waits for the next kernel to be asked for",
    "arithmetic": "half precision where the GPU has it, less activation checkpointing where memory allows, "
    "a smaller model or shorter inputs: the hardware does what it can",
    "saving": "more time between saves (save_every_seconds=), or a faster disk",
    "evaluating": "fewer validation samples, or fewer epochs of more updates",
    "starting": "longer sessions: starting, restoring and leaving cost the same in each",
}


@dataclass(frozen=True, kw_only=True)
class Spent:
    """Seconds of wall clock by cause; together they are the whole."""

    input: float
    """Training stood still for data."""
    launches: float | None
    """The GPU was idle though the data was there; None where nothing measures it, as on a CPU."""
    arithmetic: float
    """Forward, backward and optimizer: what is left of the time of updates."""
    saving: float
    """Training stood still for a save."""
    evaluating: float
    starting: float
    """Starting, restoring, leaving."""

    @property
    def total(self) -> float:
        return sum(seconds for _, seconds in self.items())

    def items(self) -> list[tuple[Cause, float]]:
        """What is known, in the order of the fields."""
        found: list[tuple[Cause, float | None]] = [
            ("input", self.input),
            ("launches", self.launches),
            ("arithmetic", self.arithmetic),
            ("saving", self.saving),
            ("evaluating", self.evaluating),
            ("starting", self.starting),
        ]
        return [(cause, seconds) for cause, seconds in found if seconds is not None]

    def share(self, cause: Cause) -> float:
        """Of the whole, 0 to 1."""
        return dict(self.items()).get(cause, 0.0) / self.total if self.total else 0.0


def spent(events: Iterable[Mapping[str, Any]], seconds: float | None = None) -> Spent:
    """Where the time of the sessions in `events` went; `seconds` is all of it, by default what their events name.

    A GPU's idle share is that of its samples (one to each line of progress), weighed by the seconds of the line.
    """
    found = list(events)
    progress = [event for event in found if event["event"] == "progress"]
    updating = _sum(progress, "seconds")
    waited = min(updating, _sum(progress, "waiting_seconds"))
    saving = sum(
        _number(event.get("stall_seconds", event.get("seconds"))) for event in found if event["event"] == "save"
    )
    evaluating = sum(_number(event.get("seconds")) for event in found if event["event"] == "evaluation")
    launches = _idle(progress, updating, waited)
    whole = seconds if seconds is not None else sum(_number(e.get("seconds")) for e in found if e["event"] == "stop")
    return Spent(
        input=waited,
        launches=launches,
        arithmetic=updating - waited - (launches or 0.0),
        saving=saving,
        evaluating=evaluating,
        starting=max(0.0, whole - updating - saving - evaluating),
    )


def bound(where: Spent) -> Cause | None:
    """What took the most of the time; None before any update."""
    if where.arithmetic <= 0:
        return None
    return max(where.items(), key=lambda item: item[1])[0]


def helps(where: Spent) -> list[tuple[Cause, str]]:
    """What to do about the bound and about every other cause that takes more than is tolerated, the largest first.

    Arithmetic is what training is for: there is something to say about it only where it is the bound.
    """
    most = bound(where)
    largest_first = sorted(where.items(), key=lambda item: -item[1])
    worth = [cause for cause, _ in largest_first if cause != "arithmetic" and where.share(cause) > TOLERATED]
    return [(cause, HELP[cause]) for cause, _ in largest_first if most and (cause == most or cause in worth)]


def told(where: Spent) -> str:
    """All of it in a line: the bound, the shares, and what would help most."""
    most = bound(where)
    if most is None:
        return "bound by nothing yet: no update was made"
    shares = ", ".join(f"{cause} {where.share(cause):.1%}" for cause, _ in where.items())
    unknown = "" if where.launches is not None else " (launches among it: on a CPU nothing tells them apart)"
    return f"bound by {most}: {shares}{unknown}; what would help: {HELP[most]}"


def _idle(progress: list[Mapping[str, Any]], updating: float, waited: float) -> float | None:
    sampled = [
        (_number(event.get("seconds")), _number(event["gpu_utilisation"]))
        for event in progress
        if event.get("gpu_utilisation") is not None
    ]
    seconds = sum(length for length, _ in sampled)
    if not seconds:
        return None
    idle = sum(length * (1.0 - share) for length, share in sampled) / seconds
    return max(0.0, idle * updating - waited)


def _sum(events: Iterable[Mapping[str, Any]], key: str) -> float:
    return sum(_number(event.get(key)) for event in events)


def _number(value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    return 0.0
