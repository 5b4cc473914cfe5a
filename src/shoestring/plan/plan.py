"""The plan: settings, what they cost in memory, time, sessions and disk, and why they were chosen."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from shoestring import config
from shoestring.estimate.disk import checkpoint_bytes
from shoestring.estimate.memory import Breakdown
from shoestring.hardware.catalog import Target
from shoestring.plan.search import CLOSE, Candidate, search
from shoestring.plan.sessions import PlannedSession, sessions
from shoestring.recipe import LoadedRecipe, updates_per_epoch
from shoestring.settings import Settings
from shoestring.trace import Tracer
from shoestring.trace.record import Facts
from shoestring.units import bytes_text

Verdict = Literal["fits", "does not fit"]


@dataclass(frozen=True, kw_only=True)
class Duration:
    """Predicted seconds; None is unknown: all on a device without known rates, all but the first without data."""

    update_seconds: float | None
    epoch_seconds: float | None
    total_seconds: float | None


@dataclass(frozen=True, kw_only=True)
class PlannedTime:
    """The prediction between a low and a high one."""

    predicted: Duration
    low: Duration
    high: Duration

    def json(self) -> dict[str, Any]:
        low = {f"low_{name}": value for name, value in dataclasses.asdict(self.low).items()}
        high = {f"high_{name}": value for name, value in dataclasses.asdict(self.high).items()}
        return {**dataclasses.asdict(self.predicted), **low, **high}


@dataclass(frozen=True, kw_only=True)
class PlannedDisk:
    """Bytes of the run's directory at its fullest, and what the platform lets it have."""

    full_checkpoint_bytes: int
    light_checkpoint_bytes: int
    peak_bytes: int
    limit_bytes: int | None

    @property
    def fits(self) -> bool:
        return self.limit_bytes is None or self.peak_bytes <= self.limit_bytes

    def json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "fits": self.fits}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The answer to: can this run be made there, how, for how long, and why so."""

    verdict: Verdict
    target: Target
    recipe: str
    options: Mapping[str, Any]
    settings: Settings
    facts: Facts
    memory: Breakdown
    time: PlannedTime
    sessions: tuple[PlannedSession, ...]
    disk: PlannedDisk
    reasons: tuple[str, ...]
    alternatives: tuple[Mapping[str, Any], ...]

    @property
    def fits(self) -> bool:
        return self.verdict == "fits"

    def json(self) -> dict[str, Any]:
        """The plan as JSON: bytes are integers, seconds numbers."""
        return {
            "verdict": self.verdict,
            "recipe": self.recipe,
            "options": config.as_json(self.options),
            "target": self.target.name,
            "device": self.target.device.title,
            "settings": self.settings.json(),
            "memory": {
                "target": self.target.name,
                "settings": self.settings.json(),
                "parameters": {"total": self.facts.parameters_total, "trainable": self.facts.parameters_trainable},
                **self.memory.json(),
            },
            "time": self.time.json(),
            "sessions": [dataclasses.asdict(session) for session in self.sessions],
            "disk": self.disk.json(),
            "reasons": list(self.reasons),
            "alternatives": [dict(alternative) for alternative in self.alternatives],
        }


def make_plan(loaded: LoadedRecipe, target: Target, wanted: Settings) -> Plan:
    """Plan `loaded` for `target`; what `wanted` fixes stays fixed.

    Raises TraceError when a training step of the model cannot be followed, QuestionError when its data is bad.
    """
    with Tracer(loaded) as tracer:
        facts = tracer.facts
        candidates = search(tracer, loaded, target, wanted)
    chosen = candidates[0]
    per_epoch = updates_per_epoch(facts.samples["train"], loaded.effective_batch) if facts.samples else None
    time = _time(chosen, per_epoch, loaded.epochs)
    disk = _disk(chosen, target)
    planned = _sessions(target, time, per_epoch, loaded.epochs)
    verdict: Verdict = "fits" if chosen.memory.fits and disk.fits and planned is not None else "does not fit"
    return Plan(
        verdict=verdict,
        target=target,
        recipe=loaded.name,
        options=loaded.options,
        settings=chosen.settings,
        facts=facts,
        memory=chosen.memory,
        time=time,
        sessions=tuple(planned or ()),
        disk=disk,
        reasons=tuple(_reasons(candidates, loaded, target, wanted, facts, disk, planned)),
        alternatives=tuple(_alternative(other) for other in candidates[1:]),
    )


def _time(chosen: Candidate, per_epoch: int | None, epochs: int) -> PlannedTime:
    def duration(update_seconds: float | None) -> Duration:
        epoch = update_seconds * per_epoch if update_seconds is not None and per_epoch else None
        return Duration(
            update_seconds=update_seconds, epoch_seconds=epoch, total_seconds=epoch * epochs if epoch else None
        )

    seconds = chosen.time
    if seconds is None:
        return PlannedTime(predicted=duration(None), low=duration(None), high=duration(None))
    return PlannedTime(predicted=duration(seconds.value), low=duration(seconds.low), high=duration(seconds.high))


def _disk(chosen: Candidate, target: Target) -> PlannedDisk:
    """At its fullest: the checkpoints kept, the one being written, and the best and the last weights."""
    size = checkpoint_bytes(chosen.trace)
    return PlannedDisk(
        full_checkpoint_bytes=size.full,
        light_checkpoint_bytes=size.light,
        peak_bytes=(chosen.settings.keep_checkpoints + 1) * size.full + 3 * size.light,
        limit_bytes=target.platform.disk_bytes if target.platform else None,
    )


def _sessions(target: Target, time: PlannedTime, per_epoch: int | None, epochs: int) -> list[PlannedSession] | None:
    if per_epoch is None or time.predicted.update_seconds is None:
        return []
    return sessions(
        total_updates=per_epoch * epochs,
        updates_per_epoch=per_epoch,
        update_seconds=time.predicted.update_seconds,
        session_hours=target.platform.session_hours if target.platform else None,
    )


def _reasons(
    candidates: list[Candidate],
    loaded: LoadedRecipe,
    target: Target,
    wanted: Settings,
    facts: Facts,
    disk: PlannedDisk,
    planned: list[PlannedSession] | None,
) -> list[str]:
    chosen = candidates[0]
    settings, memory = chosen.settings, chosen.memory
    reasons = [_memory_reason(chosen)]
    if wanted.micro_batch:
        reasons.append(f"micro_batch {settings.micro_batch}: as asked")
    elif not memory.fits:
        reasons.append(f"micro_batch {settings.micro_batch}: not even that fits")
    elif settings.micro_batch == loaded.effective_batch:
        reasons.append(f"micro_batch {settings.micro_batch}: the whole effective batch fits, so nothing is accumulated")
    else:
        reasons.append(f"micro_batch {settings.micro_batch}: the largest halving of {loaded.effective_batch} that fits")
    reasons.append(_precision_reason(candidates, target, wanted))
    if facts.batch_norm and settings.micro_batch != loaded.effective_batch:
        reasons.append(
            f"BatchNorm takes its statistics from each microbatch of {settings.micro_batch}, so another microbatch "
            "learns a little differently"
        )
    if chosen.time is None:
        reasons.append(f"no time: nobody knows the rates of {target.device.title}; the first updates will tell")
    if facts.samples is None:
        reasons.append("no epochs, sessions or total time: the recipe has no data()")
    if planned is None:
        reasons.append("a session ends before its first update could be done and saved")
    if not disk.fits and disk.limit_bytes is not None:
        reasons.append(
            f"the run's checkpoints take {bytes_text(disk.peak_bytes)}, of which {target.name} keeps "
            f"{bytes_text(disk.limit_bytes)}"
        )
    if target.gpus > 1:
        reasons.append(f"one of the {target.gpus} GPUs is used: this version cannot train on several yet")
    return reasons


def _memory_reason(chosen: Candidate) -> str:
    memory = chosen.memory
    largest = max(memory.parts, key=lambda part: part.bytes)
    return (
        f"memory: up to {bytes_text(memory.high_bytes)} of {bytes_text(memory.capacity_bytes)} "
        f"{'fits' if memory.fits else 'is too much'}; the largest part is {largest.name} ({bytes_text(largest.bytes)})"
    )


def _precision_reason(candidates: list[Candidate], target: Target, wanted: Settings) -> str:
    chosen = candidates[0]
    name = chosen.settings.precision
    if wanted.precision:
        return f"precision {name}: as asked"
    others = [other for other in candidates[1:] if other.settings.precision != name]
    if not others:
        return f"precision {name}: what {target.device.title} has"
    rival = min(others, key=lambda other: other.seconds)
    if chosen.memory.fits and not rival.memory.fits:
        return f"precision {name}: {rival.settings.precision} does not fit"
    if not chosen.seconds or rival.seconds < chosen.seconds * CLOSE:
        return f"precision {name}: {rival.settings.precision} is not predicted to be 10% faster"
    return (
        f"precision {name}: predicted {rival.seconds / chosen.seconds:.1f} times as fast as {rival.settings.precision}"
    )


def _alternative(other: Candidate) -> dict[str, Any]:
    return {
        "settings": other.settings.json(),
        "fits": other.memory.fits,
        "peak_bytes": other.memory.peak_bytes,
        "high_bytes": other.memory.high_bytes,
        "update_seconds": other.time.value if other.time else None,
    }
