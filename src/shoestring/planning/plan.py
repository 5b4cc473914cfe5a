"""The plan: settings, their cost in memory, time, sessions and disk, and the reasons for choosing them."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from shoestring.base import config, display
from shoestring.base.renamed import instance_attributes_of
from shoestring.base.settings import Settings
from shoestring.hardware.catalog import Target
from shoestring.hardware.images import ImageAnswer
from shoestring.hardware.prices import Price
from shoestring.planning.answers import Answer, calendar_hours
from shoestring.planning.costs import PlannedDisk, PlannedHost
from shoestring.planning.counts import Counts
from shoestring.planning.estimate.memory import Breakdown
from shoestring.planning.estimate.span import Span, total
from shoestring.planning.limits import Limit
from shoestring.planning.measurement import Measurement
from shoestring.planning.phases import Phase
from shoestring.planning.proposals.proposal import Proposal
from shoestring.planning.sessions import PlannedSession, PlannedWeek, Work, added, parts_json
from shoestring.planning.times import PlannedTime
from shoestring.planning.trace.record import Facts

Verdict = Literal["fits", "fits with changes", "does not fit"]


@dataclass(frozen=True, kw_only=True)
class Plan(display.Displayed):
    """Whether a recipe can be trained on a target, with which settings, for how long, and the reasons."""

    verdict: Verdict
    """Whether the run fits, fits with changes of options or settings, or does not fit."""
    target: Target
    """Where the run is planned for."""
    recipe: str
    """The name of the recipe."""
    options: Mapping[str, Any]
    """The values of the recipe's options."""
    settings: Settings
    """The chosen settings."""
    facts: Facts
    """What is known of the model and the data."""
    memory: Breakdown
    """The memory with these settings."""
    time: PlannedTime
    """The time of training."""
    sessions: tuple[PlannedSession, ...]
    """The sessions of the run; empty if the time is unknown or no session is long enough."""
    weeks: tuple[PlannedWeek, ...]
    """The weeks of the platform's quota; empty without one."""
    disk: PlannedDisk
    """The disk space of the run's directory."""
    host: PlannedHost
    """The host memory."""
    image: ImageAnswer | None
    """What the image of the target's platform lacks for this recipe with these options; None without an image, and in a
    session of the platform, where `shoestring check` says what is not installed."""
    limits: tuple[Limit, ...]
    """What the target limits."""
    binding: Limit
    """The limit that is exceeded by the largest factor, or, when all limits hold, the one closest to being exceeded."""
    changes: tuple[str, ...]
    """For each exceeded limit, the smallest change that would make the run fit; empty when the run fits."""
    fallbacks: tuple[str, ...]
    """The steps that the engine takes on out-of-memory, in order."""
    reasons: tuple[str, ...]
    """Why these settings were chosen, as sentences."""
    advice: tuple[str, ...]
    """What could make the run faster or safer, as sentences."""
    proposals: tuple[Proposal, ...]
    """Changes of options or of requested settings, with their costs."""
    answers: tuple[Answer, ...]
    """How far one session and one week come, and when all of the run is done; empty if that is unknown."""
    phases: tuple[Phase, ...]
    """The commands to run one after another, for a long run from a small test to the whole run."""
    price: Price | None
    """The price of one of the target's GPUs; None if it is unknown."""
    alternatives: tuple[Mapping[str, Any], ...]
    """Other settings, with their costs."""
    next_command: str
    """The command line to continue with: to train if the plan fits, to plan with the smallest changes that make it fit;
    empty if there is none, or if the recipe is an object without a file."""
    counts: Counts
    """The numbers of updates and epochs."""
    work: Work | None
    """What the run does, with its durations; None if its time is unknown."""
    measured: Measurement | None = None
    """What a probe has measured on the machine that the plan is for, and what was predicted without it; None without a
    probe."""

    @property
    def fits(self) -> bool:
        """Whether the run fits without any change."""
        return self.verdict == "fits"

    @property
    def hours(self) -> float | None:
        """The duration of all sessions in hours; None if the time is unknown."""
        return sum(session.hours for session in self.sessions) if self.sessions else None

    @property
    def unknown(self) -> tuple[str, ...]:
        """What the run does besides, whose duration is not known, and what would make it known."""
        return tuple(f"{name}: {text}" for name, text in self.work.unknown.items()) if self.work else ()

    @property
    def calendar_hours(self) -> float | None:
        """The hours from the start of the run to its end, with waiting for the quota; None if the time is unknown."""
        return calendar_hours(self.sessions, self.weeks) if self.sessions else None

    @property
    def job(self) -> Mapping[str, Span]:
        """The duration of all sessions by what takes it, in seconds with ranges; empty if the time is unknown."""
        return added(*(session.parts for session in self.sessions))

    @property
    def cost_usd(self) -> float | None:
        """The cost of all of the target's GPUs for all sessions; None if the hours or the price are unknown."""
        if self.price is None or self.hours is None:
            return None
        return self.price.usd_per_hour * self.target.gpus * self.hours

    def json(self) -> dict[str, Any]:
        """Return the plan as JSON: bytes are integers, seconds are numbers.

        Keys:
            device (text): the name of the target's device
            binding (text): the name of the limit that is exceeded most, or is closest to being exceeded if all hold
            memory (object): the memory of the chosen settings, with the keys of an estimate
            memory.parameters (object): the numbers of the model's parameters
            job (object): the duration of the whole run, the sum of its sessions
            job.seconds (number): the predicted seconds; 0 if they are unknown
            job.low_seconds (number): their lower bound
            job.high_seconds (number): their upper bound
            job.parts (list of objects): what takes the time, as in `sessions`
            job.parts.name (text): its name
            job.unknown (list of texts): what the run does besides, whose duration is not known
            cost (object): what the run costs on this target
        """
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
            "job": {**total(self.job.values()).json(), "parts": parts_json(self.job), "unknown": list(self.unknown)},
            "work": self.work.json() if self.work else None,
            "sessions": [session.json() for session in self.sessions],
            "weeks": [dataclasses.asdict(week) for week in self.weeks],
            "disk": self.disk.json(),
            "host": self.host.json(),
            "image": self.image.json() if self.image else None,
            "cost": {"usd": self.cost_usd, "price": dataclasses.asdict(self.price) if self.price else None},
            "limits": [limit.json() for limit in self.limits],
            "binding": self.binding.name,
            "changes": list(self.changes),
            "ladder": list(self.fallbacks),
            "reasons": list(self.reasons),
            "notes": list(self.facts.notes),
            "advice": list(self.advice),
            "proposals": [proposal.json() for proposal in self.proposals],
            "answers": [answer.json() for answer in self.answers],
            "phases": [phase.json() for phase in self.phases],
            "alternatives": [dict(alternative) for alternative in self.alternatives],
            "next_command": self.next_command,
            "measured": self.measured.json() if self.measured else None,
        }

    def __repr__(self) -> str:
        micro_batch, precision = self.settings.micro_batch, self.settings.precision
        return f"<Plan of {self.recipe} on {self.target.name}: {self.verdict}, micro_batch={micro_batch}, {precision}>"

    def __str__(self) -> str:
        """Return the summary that `shoestring plan` prints."""
        return display.text(self)

    if not TYPE_CHECKING:
        __getattr__ = instance_attributes_of("Plan")
