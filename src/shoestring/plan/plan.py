"""The plan: settings, what they cost in memory, time, sessions and disk, and why they were chosen."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from shoestring import config
from shoestring.estimate.memory import Breakdown
from shoestring.hardware.catalog import Target
from shoestring.plan.costs import PlannedDisk, PlannedTime, planned_disk, planned_time
from shoestring.plan.reasons import reasons
from shoestring.plan.search import Candidate, search
from shoestring.plan.sessions import PlannedSession, sessions
from shoestring.recipe import LoadedRecipe, updates_per_epoch
from shoestring.settings import Settings
from shoestring.trace import Tracer
from shoestring.trace.record import Facts

Verdict = Literal["fits", "does not fit"]


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
    time = planned_time(chosen, per_epoch, loaded.epochs)
    disk = planned_disk(chosen, target)
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
        reasons=tuple(reasons(candidates, loaded, target, wanted, facts, disk, planned)),
        alternatives=tuple(_alternative(other) for other in candidates[1:]),
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


def _alternative(other: Candidate) -> dict[str, Any]:
    return {
        "settings": other.settings.json(),
        "fits": other.memory.fits,
        "peak_bytes": other.memory.peak_bytes,
        "high_bytes": other.memory.high_bytes,
        "update_seconds": other.time.value if other.time else None,
    }
