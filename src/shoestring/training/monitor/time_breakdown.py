"""The time of a run's sessions by cause, and the bottleneck of training, as pure functions of the run's events."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from shoestring.base.reading import number
from shoestring.training.monitor.gpus import reports_of

Cause = Literal["input", "launches", "arithmetic", "exchange", "imbalance", "saving", "evaluating", "starting"]

NEGLIGIBLE_SHARE = 0.05
"""A cause with a smaller share of the time gets no advice."""

_SAMPLE_SECONDS = 1.0
"""The longest time over which the driver measures the use of a GPU (`nvmlUtilization_t` in NVML's documentation). A
shorter interval between progress events may not contain it."""

ADVICE: Mapping[Cause, str] = {
    "input": "more data-loading processes (workers=), a machine with more CPU cores, or data that is cheaper to read: "
    "decoded once, staged on the local disk, or small enough to stay in GPU memory",
    "launches": "a larger microbatch, or an optimizer kernel that updates many tensors at once "
    "(optimizer_kernel=foreach or fused): the GPU is idle until the next kernel is launched",
    "arithmetic": "half precision where the GPU supports it, less activation checkpointing where memory allows, "
    "a smaller model or shorter inputs: the hardware is busy computing",
    "exchange": "a larger effective batch, which has fewer exchanges of gradients, fewer trained parameters (lora_r=), "
    "or one GPU",
    "imbalance": "equal GPUs that nobody else uses; the report shows which of them is slow",
    "saving": "a longer interval between saves (save_every_seconds=), or a faster disk",
    "evaluating": "fewer validation samples, or fewer epochs with more updates each",
    "starting": "longer sessions: every session spends the same time on starting, restoring and stopping",
}


@dataclass(frozen=True, kw_only=True)
class TimeBreakdown:
    """Seconds of wall clock by cause; their sum is the total time."""

    input: float
    """Training waited for data."""
    launches: float | None
    """The GPU was idle although data was available; None where that is not measured: on a CPU, and in the first second
    of training."""
    arithmetic: float
    """Forward, backward and optimizer: the time of updates not due to another cause."""
    exchange: float | None = None
    """Gradients were exchanged between GPUs; None with one GPU."""
    imbalance: float | None = None
    """The first GPU waited for another one; None with one GPU."""
    saving: float
    """Training waited for a save."""
    evaluating: float
    starting: float
    """Starting, restoring and stopping."""

    @property
    def total(self) -> float:
        return sum(seconds for _, seconds in self.items())

    @property
    def updating(self) -> float:
        """The seconds of the updates."""
        return self.input + self.arithmetic + sum(s or 0.0 for s in (self.launches, self.exchange, self.imbalance))

    def items(self) -> list[tuple[Cause, float]]:
        """Return the measured causes with their seconds, in the order of the fields."""
        causes: list[tuple[Cause, float | None]] = [
            ("input", self.input),
            ("launches", self.launches),
            ("arithmetic", self.arithmetic),
            ("exchange", self.exchange),
            ("imbalance", self.imbalance),
            ("saving", self.saving),
            ("evaluating", self.evaluating),
            ("starting", self.starting),
        ]
        return [(cause, seconds) for cause, seconds in causes if seconds is not None]

    def share(self, cause: Cause) -> float:
        """Return the share of `cause` in the total time, 0 to 1."""
        return dict(self.items()).get(cause, 0.0) / self.total if self.total else 0.0


def compute_breakdown(events: Iterable[Mapping[str, Any]], seconds: float | None = None) -> TimeBreakdown:
    """Return the time of the sessions in `events` by cause.

    `seconds` is the total time, by default the sum over the stop events. The idle share of a GPU is the mean of its
    samples (one per progress event), weighted by the seconds of each event.
    """
    events = list(events)
    progress = [event for event in events if event["event"] == "progress"]
    updating = _sum(progress, "seconds")
    waiting = min(updating, _sum(progress, "waiting_seconds"))
    saving = sum(
        _number(event.get("stall_seconds", event.get("seconds"))) for event in events if event["event"] == "save"
    )
    evaluating = _sum([event for event in events if event["event"] in ("evaluation", "answers")], "seconds")
    of_first = [gpus[0] for event in progress if (gpus := reports_of(event))]
    exchange, imbalance = _sum(of_first, "exchange_seconds"), _sum(of_first, "waiting_seconds")
    launches = _idle_seconds(progress, updating, waiting)
    total = seconds if seconds is not None else sum(_number(e.get("seconds")) for e in events if e["event"] == "stop")
    return TimeBreakdown(
        input=waiting,
        launches=launches,
        arithmetic=max(0.0, updating - waiting - (launches or 0.0) - exchange - imbalance),
        exchange=exchange if of_first else None,
        imbalance=imbalance if of_first else None,
        saving=saving,
        evaluating=evaluating,
        starting=max(0.0, total - updating - saving - evaluating),
    )


def bottleneck(breakdown: TimeBreakdown) -> Cause | None:
    """Return the cause with the most time, or None before the first update."""
    if breakdown.updating <= 0:  # arithmetic alone is 0 where the GPU was idle in every sample of its use
        return None
    return max(breakdown.items(), key=lambda item: item[1])[0]


def advice(breakdown: TimeBreakdown) -> list[tuple[Cause, str]]:
    """Return advice on the bottleneck and on every other cause that is not negligible, the largest first.

    Arithmetic is the purpose of training, so there is advice on it only when it is the bottleneck.
    """
    largest = bottleneck(breakdown)
    if largest is None:
        return []
    largest_first = sorted(breakdown.items(), key=lambda item: -item[1])
    return [
        (cause, ADVICE[cause])
        for cause, _ in largest_first
        if cause == largest or (cause != "arithmetic" and breakdown.share(cause) > NEGLIGIBLE_SHARE)
    ]


def describe_breakdown(breakdown: TimeBreakdown) -> str:
    """Describe the breakdown in one line: the bottleneck, the shares, and the advice on the bottleneck."""
    largest = bottleneck(breakdown)
    if largest is None:
        return "no bottleneck known: no update was completed"
    shares = ", ".join(f"{cause} {breakdown.share(cause):.1%}" for cause, _ in breakdown.items())
    note = (
        ""
        if breakdown.launches is not None
        else "; arithmetic includes launches, which are measured on a GPU that trains for a second or more"
    )
    return f"bottleneck: {largest} ({shares}{note}); to speed up: {ADVICE[largest]}"


def _idle_seconds(progress: list[Mapping[str, Any]], updating: float, waiting: float) -> float | None:
    samples = [
        (_number(event.get("seconds")), _number(event["gpu_utilisation"]))
        for event in progress
        if event.get("gpu_utilisation") is not None and _number(event.get("seconds")) >= _SAMPLE_SECONDS
    ]
    seconds = sum(duration for duration, _ in samples)
    if not seconds:
        return None
    idle_share = sum(duration * (1.0 - utilisation) for duration, utilisation in samples) / seconds
    return max(0.0, idle_share * updating - waiting)


def _sum(events: Iterable[Mapping[str, Any]], key: str) -> float:
    return sum(_number(event.get(key)) for event in events)


def _number(value: object) -> float:
    return number(value) or 0.0
