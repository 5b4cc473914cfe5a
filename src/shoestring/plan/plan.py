"""The plan: settings, what they cost in memory, time, sessions and disk, and why they were chosen."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from shoestring import config, display
from shoestring.estimate.calibration import Calibration
from shoestring.estimate.memory import Breakdown
from shoestring.hardware.catalog import Target
from shoestring.hardware.prices import Price, price
from shoestring.plan.advice import Seen, advice
from shoestring.plan.candidates import Candidate, Candidates
from shoestring.plan.costs import PlannedDisk, PlannedHost, PlannedTime, planned_disk, planned_host, planned_time
from shoestring.plan.limits import Limit, binding, limits
from shoestring.plan.phases import Phase, phases, plan_command
from shoestring.plan.proposals import Proposal, proposals, smaller_files, smallest
from shoestring.plan.reasons import calibration_reason, changes, reasons
from shoestring.plan.search import search
from shoestring.plan.sessions import PlannedSession, PlannedWeek, sessions, weeks
from shoestring.recipe.contract import updates_per_epoch
from shoestring.recipe.options import LoadedRecipe
from shoestring.renamed import instance_attributes_of
from shoestring.settings import Settings
from shoestring.techniques import fallbacks
from shoestring.trace import Tracer
from shoestring.trace.record import Facts

Verdict = Literal["fits", "fits with changes", "does not fit"]


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
    weeks: tuple[PlannedWeek, ...]
    disk: PlannedDisk
    host: PlannedHost
    limits: tuple[Limit, ...]
    binding: Limit
    """The limit that is exceeded most, or that is nearest."""
    changes: tuple[str, ...]
    """The smallest that would make it fit, of each limit that is exceeded; none where it fits."""
    fallbacks: tuple[str, ...]
    """What the engine does where memory runs out all the same."""
    reasons: tuple[str, ...]
    advice: tuple[str, ...]
    proposals: tuple[Proposal, ...]
    phases: tuple[Phase, ...]
    price: Price | None
    """Of one of the target's GPUs; None where nobody knows."""
    alternatives: tuple[Mapping[str, Any], ...]
    next_command: str
    """The command line to continue with: to train if the plan fits, to plan with the smallest changes that make it fit;
    empty if there is none, or if the recipe is an object without a file."""

    @property
    def fits(self) -> bool:
        """As it stands, without any change."""
        return self.verdict == "fits"

    @property
    def hours(self) -> float | None:
        """Of all sessions; None where the time is unknown."""
        return sum(session.hours for session in self.sessions) if self.sessions else None

    @property
    def cost_usd(self) -> float | None:
        """Of all of the target's GPUs for all sessions; None where hours or price are unknown."""
        if self.price is None or self.hours is None:
            return None
        return self.price.usd_per_hour * self.target.gpus * self.hours

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
            "weeks": [dataclasses.asdict(week) for week in self.weeks],
            "disk": self.disk.json(),
            "host": self.host.json(),
            "cost": {"usd": self.cost_usd, "price": dataclasses.asdict(self.price) if self.price else None},
            "limits": [limit.json() for limit in self.limits],
            "binding": self.binding.name,
            "changes": list(self.changes),
            "ladder": list(self.fallbacks),
            "reasons": list(self.reasons),
            "notes": list(self.facts.notes),
            "advice": list(self.advice),
            "proposals": [proposal.json() for proposal in self.proposals],
            "phases": [phase.json() for phase in self.phases],
            "alternatives": [dict(alternative) for alternative in self.alternatives],
            "next_command": self.next_command,
        }

    def __repr__(self) -> str:
        micro_batch, precision = self.settings.micro_batch, self.settings.precision
        return f"<Plan of {self.recipe} on {self.target.name}: {self.verdict}, micro_batch={micro_batch}, {precision}>"

    def __str__(self) -> str:
        """Return the summary that `shoestring plan` prints."""
        return display.text(self)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return display.html(self)

    if not TYPE_CHECKING:
        __getattr__ = instance_attributes_of("Plan")


def make_plan(
    loaded: LoadedRecipe,
    target: Target,
    wanted: Settings,
    *,
    thorough: bool = False,
    usd_per_hour: float | None = None,
    calibration: Calibration | None = None,
) -> Plan:
    """Plan `loaded` for `target`; what `wanted` fixes stays fixed.

    A thorough plan has proposals and phases as well: what would change the learning or leave what was asked for, priced
    as far as that does not take longer than the plan. `usd_per_hour` of one GPU counts instead of a list price, and
    `calibration` is what a run on the same device measured.

    Raises TraceError when a training step of the model cannot be followed, UsageError when its data is bad or the
    model cannot have what `wanted` fixes.
    """
    with Tracer(loaded) as tracer:
        return plan_with(
            tracer, loaded, target, wanted, thorough=thorough, usd_per_hour=usd_per_hour, calibration=calibration
        )


def plan_with(
    tracer: Tracer,
    loaded: LoadedRecipe,
    target: Target,
    wanted: Settings,
    *,
    thorough: bool,
    usd_per_hour: float | None,
    calibration: Calibration | None,
) -> Plan:
    """`make_plan` with a tracer of `loaded` that may have answered for other targets: starting one takes seconds."""
    with Candidates(tracer, loaded, target, calibration) as candidates:
        facts = tracer.facts
        found = search(candidates, wanted)
        chosen = found[0]
        per_epoch = updates_per_epoch(facts.samples["train"], loaded.effective_batch) if facts.samples else None
        time = planned_time(
            chosen,
            per_epoch,
            loaded.epochs,
            effective_batch=loaded.effective_batch,
            validation_samples=(facts.samples or {}).get("validation"),
        )
        adapters = bool(loaded.options.get("lora_r"))
        disk, host = planned_disk(chosen, target, adapters=adapters), planned_host(chosen, target)
        planned = _sessions(target, time, disk, per_epoch, loaded.epochs)
        evaluating = (time.evaluation_seconds or 0.0) / (per_epoch or 1)
        bounds = limits(chosen, disk, host, target, evaluating)
        fits = all(limit.holds for limit in bounds)
        proposed = proposals(candidates, chosen, wanted, fits=chosen.fits, facts=facts) if thorough else []
        proposed += smaller_files(
            chosen, lambda each: planned_disk(each, target, adapters=adapters).peak_bytes, disk.limit_bytes
        )
    platform = target.platform
    phases_to_run: tuple[Phase, ...] = ()
    if thorough and fits:
        phases_to_run = tuple(
            phases(
                loaded,
                wanted,
                target.name,
                samples=(facts.samples or {}).get("train"),
                update_seconds=time.predicted.update_seconds,
                total_seconds=time.predicted.total_seconds,
            )
        )
    return Plan(
        verdict=_verdict(bounds, proposed),
        target=target,
        recipe=loaded.name,
        options=loaded.options,
        settings=chosen.settings,
        facts=facts,
        memory=chosen.memory,
        time=time,
        sessions=tuple(planned or ()),
        weeks=tuple(weeks(planned or (), platform.weekly_gpu_hours if platform else None)),
        disk=disk,
        host=host,
        limits=tuple(bounds),
        binding=binding(bounds),
        changes=tuple(changes(bounds, proposed, target)),
        fallbacks=tuple(
            fallbacks.descriptions(chosen.settings, _fallback_limits(loaded, chosen.settings, facts, target))
        ),
        reasons=(*reasons(found, loaded, target, wanted, facts, bounds), *calibration_reason(calibration, target)),
        advice=tuple(advice(Seen(chosen=chosen, wanted=wanted, loaded=loaded, target=target))),
        proposals=tuple(proposed),
        phases=phases_to_run,
        price=price(target, usd_per_hour),
        alternatives=tuple(_alternative(other) for other in _alternatives(found[1:])),
        next_command=_next_command(loaded, wanted, target.name, bounds, proposed, phases_to_run),
    )


def _fallback_limits(loaded: LoadedRecipe, settings: Settings, facts: Facts, target: Target) -> fallbacks.Limits:
    # Without a choice torch works on many tensors at once on a GPU, and on one after another on a CPU.
    batched_by_default = settings.optimizer_kernel is None and target.device.kind == "cuda"
    return fallbacks.Limits(
        least_micro_batch=fallbacks.least_micro_batch(batch_norm=facts.batch_norm),
        blocks=facts.blocks,
        # A library's trainer has an optimizer of its own.
        batched_step=loaded.parts.trainer is None
        and (batched_by_default or settings.optimizer_kernel in ("foreach", "fused")),
    )


def _next_command(
    loaded: LoadedRecipe,
    wanted: Settings,
    on: str,
    bounds: Sequence[Limit],
    proposed: Sequence[Proposal],
    phases_to_run: Sequence[Phase],
) -> str:
    """Return the command to continue with: the full run, or the plan with the smallest change for each broken limit."""
    broken = [limit for limit in bounds if not limit.holds]
    if not broken:
        return phases_to_run[-1].command if phases_to_run else ""
    values: dict[str, Any] = {}
    for limit in broken:
        change = smallest(proposed, limit.kind)
        if change is None:
            return ""
        values |= change.values
    return plan_command(loaded, wanted, on, values)


def _verdict(bounds: Sequence[Limit], proposed: Sequence[Proposal]) -> Verdict:
    """Changes are those of options and settings: another machine is not this one."""
    broken = [limit for limit in bounds if not limit.holds]
    if not broken:
        return "fits"
    return "fits with changes" if all(smallest(proposed, limit.kind) for limit in broken) else "does not fit"


def _sessions(
    target: Target, time: PlannedTime, disk: PlannedDisk, per_epoch: int | None, epochs: int
) -> list[PlannedSession] | None:
    if per_epoch is None or time.predicted.update_seconds is None:
        return []
    platform = target.platform
    return sessions(
        total_updates=per_epoch * epochs,
        updates_per_epoch=per_epoch,
        update_seconds=time.predicted.update_seconds,
        session_hours=platform.session_hours if platform else None,
        weekly_hours=platform.weekly_gpu_hours if platform else None,
        evaluation_seconds=time.evaluation_seconds or 0.0,
        save_bytes=disk.full_checkpoint_bytes,
    )


def _alternatives(others: Sequence[Candidate]) -> list[Candidate]:
    """Of those that differ in their microbatch alone the best."""
    best: dict[Settings, Candidate] = {}
    for other in others:
        best.setdefault(other.settings.replace(micro_batch=None), other)
    return list(best.values())


def _alternative(other: Candidate) -> dict[str, Any]:
    return {
        "settings": other.settings.json(),
        "fits": other.memory.fits,
        "peak_bytes": other.memory.peak_bytes,
        "high_bytes": other.memory.high_bytes,
        "update_seconds": other.time.value if other.time else None,
    }
