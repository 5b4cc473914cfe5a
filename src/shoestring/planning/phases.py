"""A run in three phases, each with its command line: a smoke test, a pilot, and the full run."""

from dataclasses import asdict, dataclass
from typing import Any

from shoestring.base.settings import Settings
from shoestring.hardware.catalog import Target
from shoestring.planning.commands import training_command
from shoestring.planning.counts import Counts
from shoestring.planning.estimate.span import total
from shoestring.planning.sessions import Work, session_parts
from shoestring.recipe.options import LoadedRecipe

SMOKE_UPDATES = 20
PILOT_SECONDS = 3600.0


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A command to run, how long it takes, and its purpose."""

    name: str
    """Its name, such as "smoke test"."""
    command: str
    """The command to type."""
    seconds: float | None
    """The duration including starting and stopping; None if the time is unknown."""
    tells: str
    """What the phase shows."""

    def json(self) -> dict[str, Any]:
        return asdict(self)


def phases(
    loaded: LoadedRecipe, requested: Settings, target: Target, *, counts: Counts, work: Work | None
) -> list[Phase]:
    """Return the phases that make sense: no pilot for a short run; no phases for a recipe that cannot be trained.

    `work` is what the run does, None if its time is unknown.
    """
    if loaded.is_live or not counts.per_epoch:
        return []
    samples = counts.samples["train"]
    planned = []

    def seconds_of(updates: int, epochs: float) -> float | None:
        if work is None:
            return None
        return total(session_parts(work, updates, epochs).values()).seconds

    total_seconds = seconds_of(counts.total, counts.total / counts.per_epoch)
    smoke_updates = min(SMOKE_UPDATES, counts.per_epoch)
    smoke = min(samples, -(-samples * smoke_updates // counts.per_epoch))
    if smoke < samples or loaded.epochs > 1:
        part = {"subset": smoke} if smoke < samples else {}
        planned.append(
            Phase(
                name="smoke test",
                command=training_command(loaded, requested, target, suffix="smoke", changes={"epochs": 1, **part}),
                seconds=seconds_of(smoke_updates, 1),
                tells="checks that the data, the model, saving and evaluation work on the target, and measures the "
                "time of an update",
            )
        )
    if work is not None and total_seconds is not None and total_seconds > 2 * PILOT_SECONDS:
        share = PILOT_SECONDS / total_seconds
        if loaded.max_updates is None:
            pilot = max(smoke, round(samples * share))
            part = {"subset": pilot}
            updates = max(1, round(counts.total * pilot / samples))
            seconds = seconds_of(updates, loaded.epochs)
            schedule = "on a stratified part of the data"
        else:
            updates = max(1, round(counts.total * share))
            part, schedule = {"max_updates": updates}, "in fewer updates"
            seconds = seconds_of(updates, updates / counts.per_epoch)
        planned.append(
            Phase(
                name="pilot",
                command=training_command(loaded, requested, target, suffix="pilot", changes=part),
                seconds=seconds,
                tells=f"checks that the model learns, with the whole schedule {schedule}",
            )
        )
    planned.append(
        Phase(
            name="full run",
            command=training_command(loaded, requested, target),
            seconds=total_seconds,
            tells="runs the whole training; the same command continues the run in the next session",
        )
    )
    return planned
